"""Where in a chat template the user speaks."""

from collections.abc import Sequence
from itertools import takewhile

from blockdraft_models.tokenizer.tokenizer import Tokenizer, TokenizerError

# Two messages that share no token: what is the same around both is the template's.
_PROBES = ("a", "0")


def opening_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return a conversation up to where the user has said `text` and goes on.

    Args:
        tokenizer: Its chat template says how a conversation opens.
        text: How the user begins; empty for nothing.

    Raises:
        TokenizerError: If there is no chat template, or it does not put messages in as they are.
    """
    first, second = (_user_turn(tokenizer, probe) for probe in _PROBES)
    before = _shared(first, second)
    if not before or first == second:
        raise TokenizerError("the chat template has no place before the user's text to go on from")
    if not text:
        return tuple(first[:before])
    after = _shared(first[before:][::-1], second[before:][::-1])
    whole = _user_turn(tokenizer, text)
    if whole[:before] != first[:before]:
        raise TokenizerError(f"the chat template does not open a message with {text!r} as it is")
    return tuple(whole[: len(whole) - after])


def _user_turn(tokenizer: Tokenizer, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return tokenizer.encode_chat(messages, add_generation_prompt=False)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
