"""What the server asks of a tokenizer."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """The part of a target's tokenizer that the server uses.

    A protocol, so that tests need no model files.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids the tokenizer knows."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Token ids with which the model ends its answer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; control tokens in it are read as plain text."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant to answer."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, empty for control tokens and for padding ids."""
