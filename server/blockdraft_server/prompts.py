"""From the three forms of a prompt to token ids."""

import json
from typing import TYPE_CHECKING, Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import invalid_argument

if TYPE_CHECKING:
    from blockdraft_models.tokenizer.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")

# So many long texts are tokenized at once; more would only compete for the processors.
TOKENIZERS = 2


def check_prompt(prompt: inference_pb2.Prompt, max_bytes: int) -> int:
    """Check a prompt before tokenizing; return the UTF-8 bytes of its text, 0 for token ids."""
    form = prompt.WhichOneof("content")
    if form is None:
        raise invalid_argument("prompt", "prompt must be set")
    if form == "token_ids":
        if not prompt.token_ids.values:
            raise invalid_argument("prompt.token_ids.values", "the prompt has no token ids")
        return 0
    if form == "text":
        if not prompt.text:
            raise invalid_argument("prompt.text", "the prompt is empty")
        size = len(prompt.text.encode())
    else:
        size = _check_conversation(prompt.conversation)
    if size > max_bytes:
        field = f"prompt.{form}"
        message = f"the prompt has {size} bytes of text, at most {max_bytes} are allowed"
        raise invalid_argument(field, message, bytes=size, limit=max_bytes)
    return size


def prompt_token_ids(prompt: inference_pb2.Prompt, tokenizer: "Tokenizer") -> list[int]:
    """Return the token ids of a prompt that passed `check_prompt`."""
    token_ids = _encode(prompt, tokenizer)
    if not token_ids:
        raise invalid_argument("prompt", "the prompt has no tokens")
    return token_ids


def longest_token_bytes(tokenizer: "Tokenizer") -> int:
    """Return the number of bytes of the longest token."""
    return max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))


def _check_conversation(conversation: inference_pb2.Conversation) -> int:
    field = "prompt.conversation.messages"
    if not conversation.messages:
        raise invalid_argument(field, "the conversation has no messages")
    for index, message in enumerate(conversation.messages):
        if message.role not in ROLES:
            name, allowed = f"{field}[{index}].role", ", ".join(ROLES)
            text = f"{name} must be one of {allowed}, got {message.role!r}"
            raise invalid_argument(name, text, value=message.role)
    for index, tool in enumerate(conversation.tools):
        _check_json_object(f"prompt.conversation.tools[{index}]", tool)
    if conversation.template_arguments:
        name = "prompt.conversation.template_arguments"
        _check_json_object(name, conversation.template_arguments)
    texts = [
        *(message.content for message in conversation.messages),
        *conversation.tools,
        conversation.template_arguments,
        *(call.arguments for message in conversation.messages for call in message.tool_calls),
        *(message.reasoning_content for message in conversation.messages),
    ]
    return sum(len(text.encode()) for text in texts)


def _arguments(text: str) -> object:
    """Return the arguments of a call; as the text itself if that is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _check_json_object(field: str, text: str) -> None:
    if not isinstance(_arguments(text), dict):
        raise invalid_argument(field, f"{field} must be a JSON object")


def _message(message: inference_pb2.ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates expect it."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    for name in ("tool_call_id", "reasoning_content"):
        if value := getattr(message, name):
            fields[name] = value
    return fields


def _encode(prompt: inference_pb2.Prompt, tokenizer: "Tokenizer") -> list[int]:
    match prompt.WhichOneof("content"):
        case "token_ids":
            return list(prompt.token_ids.values)
        case "text":
            encode = tokenizer.encode_rendered if prompt.parse_special else tokenizer.encode
            return encode(prompt.text)
        case _:
            conversation = prompt.conversation
            try:
                return tokenizer.encode_chat(
                    list(map(_message, conversation.messages)),
                    tools=list(map(json.loads, conversation.tools)),
                    arguments=json.loads(conversation.template_arguments or "{}"),
                )
            except ValueError as error:
                # A chat template may refuse a conversation, say for the order of its roles.
                raise invalid_argument("prompt.conversation", str(error)) from error
            except RecursionError as error:
                message = "tools, calls or template arguments are nested too deeply"
                raise invalid_argument("prompt.conversation", message) from error
