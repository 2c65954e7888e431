"""Errors as OpenAI's clients know them. Pure."""

import re
from http import HTTPStatus
from typing import Any

import grpc

from blockdraft_runtime.status import ServiceError

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# OpenAI's names of the fields that our errors name.
_NAMES = {
    "sampling.max_output_tokens": "max_tokens",
    "sampling.stop_sequences": "stop",
    "prompt.conversation.messages": "messages",
    "prompt.conversation.tools": "tools",
    "prompt.conversation.template_arguments": "chat_template_kwargs",
    "prompt.conversation": "messages",
    "prompt.token_ids.values": "prompt",
    "prompt.text": "prompt",
}
_TEXT_NAMES = {**_NAMES, "sampling.log_probs": "logprobs"}
_NAMES_BY_PATH = {
    "/v1/chat/completions": {**_NAMES, "sampling.log_probs": "top_logprobs", "prompt": "messages"},
    "/detokenize": {"prompt.token_ids.values": "tokens"},
}
# Clients look for this code, or for these words, to make a prompt shorter or to go elsewhere.
_TOO_LONG = "context_length_exceeded"
_MAXIMUM = "This model's maximum context length is"


def error_body(error: ServiceError, path: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an error of a call to `path`, with OpenAI's names."""
    names = _NAMES_BY_PATH.get(path, _TEXT_NAMES)
    field, message, code = error.field, error.message, error.reason.lower()
    if field is not None:
        # The whole name, or all before a part of it: `prompt_logprobs` is no part of `prompt`.
        ours = next((name for name in names if re.match(rf"{re.escape(name)}\b", field)), "")
        named = names.get(ours, "") + field[len(ours) :].removeprefix("sampling.")
        message, field = message.replace(field, named), named
    # Messages about another field may name this one too.
    message = message.replace("max_output_tokens", "max_tokens")
    about = error.metadata
    if error.reason == "PROMPT_TOO_LONG":
        code = _TOO_LONG
        message = (
            f"{_MAXIMUM} {about['max_context_tokens']} tokens. However, your {field} resulted in "
            f"{about['prompt_tokens']} tokens. Please reduce the length of the {field}."
        )
    elif "bytes" in about and (error.field or "").startswith(("prompt", "body")):
        code = _TOO_LONG
        message = f"{_MAXIMUM} exceeded: {message}"
    status = _STATUS.get(error.code, 500)
    return status, _error(status, message, field, code)


def http_error(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error of HTTP itself."""
    return _error(status, message, None, HTTPStatus(status).phrase.lower().replace(" ", "_"))


def _error(status: int, message: str, field: str | None, code: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
