"""Checks of single fields of a request; each raises an error that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_runtime.status import invalid_argument

MAX_TEXT_BYTES = 1024
"""Most bytes of a stop sequence or a bad word."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of the target."""

    vocabulary_size: int  # number of token ids
    max_context_tokens: int  # most tokens of a prompt and its completion together


def check(holds: bool, field: str, expected: str, value: float) -> None:
    """Refuse the number of a field unless `holds`; `expected` says in words what it must be."""
    if not holds:
        raise invalid_argument(field, f"{field} must be {expected}, got {value:g}", value=value)


def check_within(field: str, value: float, bound: float) -> None:
    """Refuse a number whose magnitude is above `bound`."""
    check(-bound <= value <= bound, field, f"in [-{bound}, {bound}]", value)


def check_count(field: str, count: int, limit: int, noun: str) -> None:
    """Refuse a list with more than `limit` items, which `noun` names in messages."""
    if count > limit:
        message = f"{field} holds {count} {noun}, at most {limit} may be"
        raise invalid_argument(field, message, count=count, limit=limit)


def check_texts(field: str, texts: Sequence[str], limit: int) -> None:
    """Refuse too many texts, and any that is empty or too long."""
    check_count(field, len(texts), limit, "texts")
    for index, text in enumerate(texts):
        item, size = f"{field}[{index}]", len(text.encode())
        if not size:
            raise invalid_argument(item, f"{item} must not be empty")
        if size > MAX_TEXT_BYTES:
            message = f"{item} has {size} bytes, at most {MAX_TEXT_BYTES} are allowed"
            raise invalid_argument(item, message, bytes=size, limit=MAX_TEXT_BYTES)


def check_token_ids(field: str, token_ids: Sequence[int], limits: ModelLimits) -> None:
    """Refuse token ids outside the vocabulary; the error names the first."""
    # All at once first: a prompt may be as long as a book, and nearly all are right.
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < limits.vocabulary_size):
        return
    for index, token_id in enumerate(token_ids):
        in_range = 0 <= token_id < limits.vocabulary_size
        check(in_range, f"{field}[{index}]", f"in [0, {limits.vocabulary_size})", token_id)
