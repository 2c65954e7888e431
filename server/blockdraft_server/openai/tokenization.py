"""vLLM's `/tokenize` and `/detokenize`: tokens of a prompt, and the text of tokens."""

from collections.abc import Awaitable, Callable
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.json_fields import Fields
from blockdraft_server.keys import Metadata
from blockdraft_server.openai.requests import conversation_of
from blockdraft_server.request import ServedModel

Tokenize = Callable[
    [inference_pb2.Prompt, Metadata | None], Awaitable[inference_pb2.TokenizeResponse]
]
"""Lists the tokens of a prompt for a caller with these headers."""


def prompt_to_tokenize(model: ServedModel, body: object) -> inference_pb2.Prompt:
    """Return the prompt of a request to tokenize, a `prompt` or `messages`."""
    fields = Fields(body)
    model.adapter(fields.text("model") or "")
    # Tokens are those that a completion of the prompt would begin with.
    fields.only("add_special_tokens", True)
    fields.only("return_token_strs", False)
    text = fields.text("prompt")
    if text is not None:
        prompt = inference_pb2.Prompt(text=text)
    elif "messages" not in fields.all():
        raise invalid_argument("prompt", "prompt or messages must be given")
    else:
        prompt = inference_pb2.Prompt(conversation=conversation_of(fields))
        fields.only("add_generation_prompt", True)
    fields.finish()
    return prompt


def tokens_to_spell(model: ServedModel, body: object) -> inference_pb2.Prompt:
    """Return the `tokens` of a request to detokenize, as a prompt of them."""
    fields = Fields(body)
    model.adapter(fields.text("model") or "")
    token_ids = fields.integers("tokens")
    fields.finish()
    if not token_ids:
        raise invalid_argument("tokens", "tokens must be a list of token ids, and not empty")
    return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=token_ids))


def tokens(listing: inference_pb2.TokenizeResponse, max_model_len: int) -> dict[str, Any]:
    """Return the answer to a request to tokenize."""
    token_ids = list(listing.token_ids)
    return {"count": len(token_ids), "max_model_len": max_model_len, "tokens": token_ids}


def spelling(listing: inference_pb2.TokenizeResponse) -> dict[str, Any]:
    """Return the answer to a request to detokenize."""
    return {"prompt": b"".join(listing.tokens).decode(errors="replace")}
