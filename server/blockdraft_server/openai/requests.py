"""From OpenAI's JSON, with vLLM's fields beside, to our requests; other fields are refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.field_checks import check, check_count
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai.output_forms import HERMES, OutputForm
from blockdraft_server.openai.structured_outputs import Form, asked_form, naming
from blockdraft_server.openai.tools import Tools, tools_of
from blockdraft_server.request import MAX_COMPLETIONS, check_request

MAX_PROMPTS = 64
"""Most prompts of one request for completions."""
MAX_PARTS = 4096
"""Most messages of a conversation, parts of their contents and calls: each is looked at."""

_LEAST_TOP_P = 1e-9
# Fields on which the answer does not depend, such as the caller's identity.
_IGNORED = (
    *("user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention"),
    *("store", "verbosity"),
)


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A request for `count` completions of each prompt; each of `requests` has one prompt."""

    requests: list[inference_pb2.StreamGenerateRequest]
    count: int
    stream: bool
    usage: bool  # whether a stream ends with the usage
    sources: bool  # whether a stream says where each token comes from
    details: bool  # whether the usage says how many drafted tokens were accepted
    # The texts of prompts that are echoed before their completions; None for one of token ids.
    echoed: tuple[str | None, ...] = ()
    bare: bool = False  # whether nothing follows the prompt
    form: Form | None = None  # the form that the completions must have; None for any
    # Of a chat: the tools that the model may call, and the arguments of its template.
    tools: Tools = field(default_factory=Tools)
    template_arguments: dict[str, Any] = field(default_factory=dict)


def chat_request(body: object, calls: OutputForm = HERMES) -> CompletionBatch:
    """Return the completions that a chat request asks for.

    `calls` is the form of the calls that it demands.
    """
    fields = Fields(body)
    conversation = conversation_of(fields)
    form = asked_form(fields)
    tools = tools_of(fields, form, calls)
    conversation.tools.extend(tools.texts)
    if tools.tags is not None:
        field = "tools" if form is None else form.field
        form = Form(field, inference_pb2.OutputConstraint(structural_tags=tools.tags))
    wants = fields.flag("logprobs")
    alternatives = fields.integer("top_logprobs")
    if alternatives is not None and not wants:
        raise invalid_argument("top_logprobs", "top_logprobs needs logprobs")
    fields.only("functions", [])
    fields.only("modalities", ["text"])
    fields.only("add_generation_prompt", True)
    prompt = inference_pb2.Prompt(conversation=conversation)
    batch = _batch(fields, [prompt], (alternatives or 0) if wants else None, form)
    arguments = json.loads(conversation.template_arguments or "{}")
    return replace(batch, tools=tools, template_arguments=arguments)


def conversation_of(fields: Fields) -> inference_pb2.Conversation:
    """Return the messages of a request, and the arguments of the chat template.

    As in vLLM, the template gets `reasoning_effort`, if it knows it; `none` disables thinking.
    """
    conversation = inference_pb2.Conversation(messages=_messages(fields))
    arguments = fields.take("chat_template_kwargs") or {}
    if not isinstance(arguments, dict):
        raise invalid_argument("chat_template_kwargs", "chat_template_kwargs must be an object")
    effort = fields.text("reasoning_effort")
    if effort is not None:
        thinking = {"enable_thinking": False} if effort == "none" else {}
        arguments = {"reasoning_effort": effort, **thinking, **arguments}
    if arguments:
        conversation.template_arguments = json.dumps(arguments)
    return conversation


def completion_request(body: object) -> CompletionBatch:
    """Return the completions that a request to continue texts asks for."""
    bare = isinstance(body, dict) and body.get("echo") is True and body.get("max_tokens") == 0
    if isinstance(body, dict) and bare:
        body = {**body, "max_tokens": 1}  # That token is left out.
    fields = Fields(body)
    prompts = list(_prompts(fields.take("prompt")))
    if fields.flag("parse_special"):
        if any(prompt.HasField("token_ids") for prompt in prompts):
            raise invalid_argument("parse_special", "parse_special is of prompts that are text")
        for prompt in prompts:
            prompt.parse_special = True
    alternatives = fields.integer("logprobs")
    fields.only("suffix", "")
    echo = fields.flag("echo")
    fields.only("best_of", 1)
    batch = _batch(fields, prompts, alternatives, asked_form(fields))
    if not echo:
        return batch
    for request in batch.requests:
        # The text of a prompt is known without them, that of token ids is not.
        if alternatives is not None or request.prompt.WhichOneof("content") == "token_ids":
            request.sampling.prompt_log_probs = alternatives or 0
    return replace(batch, echoed=tuple(prompt.text or None for prompt in prompts), bare=bare)


def _batch(
    fields: Fields,
    prompts: list[inference_pb2.Prompt],
    log_probs: int | None,
    form: Form | None,
) -> CompletionBatch:
    stream = fields.flag("stream")
    options = fields.inner("stream_options")
    usage = options.flag("include_usage")
    sources = options.flag("include_token_sources")
    options.only("include_obfuscation", False)
    options.finish()
    details = fields.flag("return_spec_tokens_details")
    speculation = _speculation(fields.inner("speculation"))
    model, priority = fields.text("model") or "", fields.text("service_tier") or "auto"
    tiers = {
        "auto": inference_pb2.PRIORITY_NORMAL,
        "default": inference_pb2.PRIORITY_NORMAL,
        "priority": inference_pb2.PRIORITY_NORMAL,
        "scale": inference_pb2.PRIORITY_NORMAL,
        "flex": inference_pb2.PRIORITY_BACKGROUND,
    }
    if priority not in tiers:
        raise fields.unsupported("service_tier")
    count = fields.integer("n")
    count = 1 if count is None else count
    check(1 <= count <= MAX_COMPLETIONS, "n", f"in [1, {MAX_COMPLETIONS}]", count)
    sampling = _sampling(fields)
    if log_probs is not None:
        sampling.log_probs = log_probs
    if form is not None:
        sampling.constraint.CopyFrom(form.constraint)
    for name in _IGNORED:
        fields.take(name)
    fields.finish()
    requests = []
    for prompt in prompts:
        requests.append(
            inference_pb2.StreamGenerateRequest(
                model=model,
                prompt=prompt,
                sampling=sampling,
                speculation=speculation,
                priority=tiers[priority],
            )
        )
    with naming(form):
        check_request(requests[0])  # They differ in their prompts.
    return CompletionBatch(
        requests, count, stream, stream and usage, stream and sources, details, form=form
    )


def _speculation(fields: Fields) -> inference_pb2.SpeculationOptions:
    options = inference_pb2.SpeculationOptions(
        disabled=fields.flag("disabled"),
        max_draft_tokens=fields.integer("max_draft_tokens"),
        prompt_lookup_disabled=fields.flag("prompt_lookup_disabled"),
        learning_disabled=fields.flag("learning_disabled"),
    )
    fields.finish()
    return options


def _sampling(fields: Fields) -> inference_pb2.SamplingOptions:
    temperature, top_p = fields.number("temperature"), fields.number("top_p")
    limit, max_tokens = fields.integer("max_completion_tokens"), fields.integer("max_tokens")
    top_k = fields.integer("top_k")
    fields.only("skip_special_tokens", True)
    fields.only("spaces_between_special_tokens", True, False)
    fields.only("include_stop_str_in_output", False)
    return inference_pb2.SamplingOptions(
        temperature=1.0 if temperature is None else temperature,
        # Zero leaves the likeliest token, as does the least probability.
        top_p=_LEAST_TOP_P if top_p == 0 else top_p,
        # As vLLM, which keeps all tokens for -1 too.
        top_k=0 if top_k == -1 else top_k,
        min_p=fields.number("min_p"),
        seed=fields.integer("seed", bits=64),
        max_output_tokens=max_tokens if limit is None else limit,
        min_tokens=fields.integer("min_tokens") or 0,
        stop_sequences=fields.texts("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        repetition_penalty=fields.number("repetition_penalty"),
        frequency_penalty=fields.number("frequency_penalty") or 0.0,
        presence_penalty=fields.number("presence_penalty") or 0.0,
        logit_bias=dict(_biases(fields)),
        allowed_token_ids=fields.integers("allowed_token_ids"),
        bad_words=fields.texts("bad_words"),
    )


def _biases(fields: Fields) -> Iterator[tuple[int, float]]:
    """Yield the token ids, which JSON has as strings, and their biases."""
    biases = fields.take("logit_bias")
    if biases is None:
        return
    inner = Fields(biases, "logit_bias")
    for name in list(biases):
        # Longer ones are no ids, and slow to read.
        if not name.isascii() or not name.isdigit() or len(name) > 9:
            raise invalid_argument(f"logit_bias.{name}", f"{name!r} of logit_bias is no token id")
        yield int(name), inner.number(name) or 0.0


def _prompts(value: Any) -> Iterator[inference_pb2.Prompt]:
    """Yield the prompts of a text, of a list of token ids, or of a list of either."""
    is_ids = isinstance(value, list) and value and isinstance(value[0], int)
    prompts = value if isinstance(value, list) and not is_ids else [value]
    if not prompts:
        raise invalid_argument("prompt", "prompt must not be empty")
    check(len(prompts) <= MAX_PROMPTS, "prompt", f"at most {MAX_PROMPTS} prompts", len(prompts))
    for prompt in prompts:
        if isinstance(prompt, str):
            yield inference_pb2.Prompt(text=prompt)
        elif isinstance(prompt, list) and prompt:
            token_ids = Fields({"prompt": prompt}).integers("prompt")
            yield inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=token_ids))
        else:
            raise invalid_argument("prompt", "prompt must be text, token ids, or a list of those")


def _messages(fields: Fields) -> Iterator[inference_pb2.ChatMessage]:
    messages = fields.take("messages")
    if not isinstance(messages, list):
        raise invalid_argument("messages", "messages must be a list")
    lists = (
        value.get(name)
        for value in messages
        if isinstance(value, dict)
        for name in ("content", "tool_calls")
    )
    parts = sum(len(parts) for parts in lists if isinstance(parts, list))
    check_count("messages", len(messages) + parts, MAX_PARTS, "messages, parts and calls")
    for index, value in enumerate(messages):
        message = Fields(value, f"messages[{index}]")
        role = message.text("role") or ""
        calls = list(_calls(message))
        for name in ("refusal", "audio", "function_call"):
            message.only(name)
        message.text("name")  # Templates tell speakers apart by their roles.
        message.only("annotations", [])
        yield inference_pb2.ChatMessage(
            role="system" if role == "developer" else role,
            # A message that calls tools may be without text.
            content=_content(message, optional=bool(calls)),
            tool_calls=calls,
            tool_call_id=message.text("tool_call_id") or "",
            reasoning_content=message.text("reasoning_content") or "",
        )
        message.finish()


def _calls(message: Fields) -> Iterator[inference_pb2.ToolCall]:
    for call in message.objects("tool_calls"):
        call.only("type", "function")
        call.take("index")
        function = Fields(call.take("function") or {}, call.named("function"))
        yield inference_pb2.ToolCall(
            id=call.text("id") or "",
            name=function.text("name") or "",
            arguments=function.text("arguments") or "{}",
        )
        function.finish()
        call.finish()


def _content(message: Fields, *, optional: bool) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    content = message.take("content")
    if isinstance(content, str) or (content is None and optional):
        return content or ""
    name = message.named("content")
    if not isinstance(content, list):
        raise invalid_argument(name, f"{name} must be text, or a list of parts")
    texts = []
    for index, part in enumerate(content):
        inner = Fields(part, f"{name}[{index}]")
        if inner.text("type") != "text":
            raise inner.unsupported("type")
        texts.append(inner.text("text") or "")
        inner.finish()
    return "".join(texts)
