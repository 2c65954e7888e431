"""Chat templates that write what published ones write, of the assistant's calls above all.

Each names the model whose `chat_template` it follows; what they write of system and user is short.
"""

_OTHERS = (
    "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}{{ tools or '' }}"
)
_CALLS = (
    "{% for m in messages if m.role == 'assistant' %}{{ m.content }}"
    "{% for call in m.tool_calls %}{% set f = call.function %}"
)
_END = "{% endfor %}{% endfor %}"


def _template(call: str, before: str = "", after: str = "", notes: str = "") -> str:
    calls = _CALLS.replace("{% for call", before + "{% for call")
    end = _END.replace("{% endfor %}", "{% endfor %}" + after, 1)
    return f"{_OTHERS}{calls}{call}{end}{{# {notes} #}}"


# Qwen/Qwen3-8B
QWEN3 = _template(
    '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    "\n</tool_call>",
    notes="<think> </think>",
)
# Qwen/Qwen3-Coder-30B-A3B-Instruct
QWEN3_CODER = _template(
    "\n<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments | items %}"
    "{{ '<parameter=' + key + '>\n' }}"
    "{{ value | tojson if value is mapping or (value is sequence and value is not string) "
    "else value | string }}{{ '\n</parameter>\n' }}{% endfor %}</function>\n</tool_call>"
)
# mistralai/Mistral-Nemo-Instruct-2407
MISTRAL_NEMO = _template(
    "{% if call.id | length != 9 %}{{ raise_exception('an id has length 9') }}{% endif %}"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "123456789"}'
    "{{ ', ' if not loop.last }}",
    before="[TOOL_CALLS][",
    after="]",
)
# mistralai/Mistral-Small-3.2-24B-Instruct-2506
MISTRAL_SMALL = _template(
    "[TOOL_CALLS]{{ f.name }}[CALL_ID]123456789[ARGS]{{ f.arguments | tojson }}"
)
# mistralai/Magistral-Small-2509
MAGISTRAL = _template(
    "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", notes="[THINK] [/THINK]"
)
# meta-llama/Llama-3.1-8B-Instruct, and as 3.2 and 3.3
LLAMA = _template(
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    notes="Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.',
)
# google/functiongemma-270m-it
GEMMA = (
    "{% macro shown(value) %}{% if value is string %}<escape>{{ value }}<escape>"
    "{% elif value is mapping %}{ {%- for key, inner in value | dictsort %}"
    "{{ key }}:{{ shown(inner) }}{{ ',' if not loop.last }}{% endfor %}}"
    "{% elif value is sequence %}[{% for inner in value %}{{ shown(inner) }}"
    "{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
    + _template("<start_function_call>call:{{ f.name }}{{ shown(f.arguments) }}<end_function_call>")
)
# openai/gpt-oss-20b; in the turn of a call there is no other.
HARMONY = _template(
    "{{ ' to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}"
    "{{ f.arguments | tojson }}{{ '<|call|>' }}",
    notes="<|start|> <|channel|> <|message|> <|call|> <|end|> <|return|>",
)
# google/gemma-3-4b-it knows of no tools.
GEMMA3 = "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}{% endfor %}"
# zai-org/GLM-4.5, of which no calls are read
GLM = _template(
    "<tool_call>{{ f.name }}\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"
)

CONTROL_TOKENS = {
    name: 258 + place
    for place, name in enumerate(
        (
            *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>"),
            *("<start_function_call>", "<end_function_call>", "<escape>"),
            *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
            *("<|return|>", "<start_function_response>"),
        )
    )
}
