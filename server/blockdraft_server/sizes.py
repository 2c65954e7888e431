"""Which requests are too large to be decoded, by their encoded bytes and what the model takes."""

import grpc

from blockdraft_runtime.status import ServiceError, invalid_argument, malformed
from blockdraft_server.encoded import (
    MAX_FIELDS,
    MAX_OTHER_BYTES,
    UNCHECKED_BYTES,
    TooManyFieldsError,
    encoded_size,
)
from blockdraft_server.request import ModelLimits

# `Tokenize` lists no more tokens: encoding the answer holds the event loop.
MAX_LISTED_TOKENS = 256 * 1024
# What normalizing may make of a text before it is tokenized: a syllable of three letters, one.
_SHRINKING = 4
# A token id below 2^28, and every vocabulary is smaller, takes at most four bytes; five do too.
_BYTES_PER_ID = 5


def check_size(
    method: str, data: bytes, max_prompt_bytes: int, limits: ModelLimits | None, longest_token: int
) -> None:
    """Refuse a request that is too large, without decoding it.

    Args:
        method: Name of the method.
        data: The encoded request.
        max_prompt_bytes: Most bytes of a prompt's text, or of its encoded token ids.
        limits: What the target can take; None while that is not known.
        longest_token: Most bytes of text that a token stands for.

    Raises:
        ServiceError: INVALID_ARGUMENT, or OUT_OF_RANGE for a prompt that leaves no room for an
            answer, however it is tokenized.
    """
    if len(data) <= UNCHECKED_BYTES:
        return
    try:
        size = encoded_size(data)
    except TooManyFieldsError:
        message = f"the request has more than {MAX_FIELDS} fields; token ids have to be packed"
        raise invalid_argument("prompt", message, limit=MAX_FIELDS) from None
    except ValueError:
        raise malformed() from None
    if size.other_bytes > MAX_OTHER_BYTES:
        message = f"all but the prompt has {size.other_bytes} bytes, at most {MAX_OTHER_BYTES} may"
        raise invalid_argument("sampling", message, bytes=size.other_bytes, limit=MAX_OTHER_BYTES)
    prompt_bytes = max(size.text_bytes, size.id_bytes)
    if prompt_bytes > max_prompt_bytes:
        message = f"the prompt has {prompt_bytes} bytes, at most {max_prompt_bytes} are allowed"
        raise invalid_argument("prompt", message, bytes=prompt_bytes, limit=max_prompt_bytes)
    if method == "Tokenize":
        most = MAX_LISTED_TOKENS
    elif limits is not None:
        most = limits.max_context_tokens
        least = -(-size.text_bytes // (_SHRINKING * longest_token))
        if least >= most:
            raise prompt_too_long(least, most)
    else:
        return
    least = -(-size.id_bytes // _BYTES_PER_ID)
    if least >= most:
        raise prompt_too_long(least, most)


def prompt_too_long(least: int, most: int) -> ServiceError:
    """Return the error for a prompt of `least` tokens or more, where there is room for `most`."""
    return ServiceError(
        grpc.StatusCode.OUT_OF_RANGE,
        "PROMPT_TOO_LONG",
        f"the prompt has at least {least} tokens; there is room for {most}",
        metadata={"prompt_tokens": least, "max_context_tokens": most},
        field="prompt",
    )
