"""Checks of single fields of a request; each raises an error that names the field."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import invalid_argument

MAX_TEXT_BYTES = 1024
"""Most bytes of a stop sequence or a bad word."""


def check(holds: bool, field: str, expected: str, value: float) -> None:
    """Refuse the number of a field unless `holds`; `expected` says in words what it must be."""
    if not holds:
        raise invalid_argument(field, f"{field} must be {expected}, got {value:g}", value=value)


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


def check_token_ids(field: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary; the error names the first."""
    # All at once first: a prompt may be as long as a book, and nearly all are right.
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocabulary_size):
        return
    for index, token_id in enumerate(token_ids):
        in_range = 0 <= token_id < vocabulary_size
        check(in_range, f"{field}[{index}]", f"in [0, {vocabulary_size})", token_id)


def checked_options(kind: type[Any], sampling: inference_pb2.SamplingOptions) -> dict[str, Any]:
    """Return the fields that are set in sampling options and that a dataclass has too, checked.

    The range of a field is in the metadata of the dataclass, as in
    `blockdraft_models.sampling_options`.
    """
    ranges = {field.name: field.metadata for field in dataclasses.fields(kind)}
    values = {field.name: value for field, value in sampling.ListFields() if field.name in ranges}
    for name, value in values.items():
        limits, path = ranges[name], f"sampling.{name}"
        numbers = {path: value}
        if "limit" in limits:
            check_count(path, len(value), limits["limit"], limits["noun"])
        if isinstance(value, Mapping):
            values[name] = dict(value)
            numbers = {f"{path}[{key}]": number for key, number in value.items()}
        if "holds" in limits:
            for field, number in numbers.items():
                check(limits["holds"](number), field, limits["expected"], number)
    return values


def check_vocabulary(sampling: inference_pb2.SamplingOptions, vocabulary_size: int) -> None:
    """Refuse sampling options with token ids outside the vocabulary."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        check_token_ids(f"sampling.{name}", getattr(sampling, name), vocabulary_size)
    for token_id in sampling.logit_bias:
        field, in_range = f"sampling.logit_bias[{token_id}]", 0 <= token_id < vocabulary_size
        check(in_range, field, f"for ids in [0, {vocabulary_size})", token_id)
