"""Messages and files that are nearly right, as pure functions of a source of randomness."""

import math
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, 1, -1, 2, 7, 255, 256, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**63 - 1, 2**64 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e38, 1e-45, 1.0000001)
_TEXTS = ("", "\0", "x", "é\u200d🦆", "<|im_end|>", "x" * 5000, "🦆" * 3000)
_LONGEST_LIST = 3000
_MOST_ITEMS = 20
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


def mutated_message(draw: random.Random, message: Message) -> bytes:
    """Return the bytes of a message with one to three changes; sometimes with none."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        change_field(draw, changed)
    data = changed.SerializeToString()
    return data if draw.random() < 0.6 else mutated_bytes(draw, data)


def change_field(draw: random.Random, message: Message) -> None:
    """Change one field of a message, or of one inside it, to a value of its type."""
    if not message.DESCRIPTOR.fields:
        return
    # The types of protobuf know two classes of what is one.
    field: FieldDescriptor = draw.choice(message.DESCRIPTOR.fields)  # type: ignore[assignment]
    if draw.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(draw, field.message_type, getattr(message, field.name))
    elif field.is_repeated:
        _change_list(draw, field, getattr(message, field.name))
    elif field.message_type is None:
        setattr(message, field.name, random_value(draw, field))
    else:
        getattr(message, field.name).SetInParent()
        change_field(draw, getattr(message, field.name))


def random_value(draw: random.Random, field: FieldDescriptor) -> object:
    """Return a value of a field's type, often one at the edge of what is allowed."""
    kind = field.cpp_type
    if kind in _BITS:
        low, high = _BITS[kind]
        value = draw.choice(_INTEGERS) if draw.random() < 0.7 else draw.randint(low, high)
        return min(max(value, low), high)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice(_FLOATS) if draw.random() < 0.7 else draw.uniform(-2, 2)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    text = draw.choice(_TEXTS)
    return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with one to four changes that know nothing of their meaning."""
    for _ in range(draw.randint(1, 4)):
        data = draw.choice(_BYTE_CHANGES)(draw, data)
    return data


def _change_map(draw: random.Random, entry: Any, items: Any) -> None:
    if items and draw.random() < 0.3:
        items.clear()
    for _ in range(draw.choice((1, 2, 17, draw.randint(0, _LONGEST_LIST)))):
        key, value = (random_value(draw, entry.fields_by_name[name]) for name in ("key", "value"))
        items[key] = value


def _change_list(draw: random.Random, field: FieldDescriptor, items: Any) -> None:
    if items and draw.random() < 0.3:
        del items[draw.randrange(len(items)) :]
    elif field.message_type is None:
        longest = _LONGEST_LIST if field.cpp_type in _BITS else _MOST_ITEMS
        count = draw.choice((1, 1, 1, 2, 17, draw.randint(0, longest)))
        value = random_value(draw, field)
        items.extend(
            value if draw.random() < 0.5 else random_value(draw, field) for _ in range(count)
        )
    else:
        for _ in range(draw.randint(1, _MOST_ITEMS)):
            copied = draw.choice(items) if items and draw.random() < 0.5 else None
            added = items.add()
            if copied is not None:
                added.CopyFrom(copied)
        change_field(draw, draw.choice(items))


def _flip(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _truncate(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randint(0, len(data))]


def _double(draw: random.Random, data: bytes) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + data[start : start + draw.randint(0, 64)] + data[start:]


def _insert(draw: random.Random, data: bytes) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.randbytes(draw.randint(1, 16)) + data[at:]


def _remove(draw: random.Random, data: bytes) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + data[at + draw.randint(1, 16) :]


def _repeat(draw: random.Random, data: bytes) -> bytes:
    return data * 2


_BYTE_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip,
    _flip,
    _truncate,
    _double,
    _insert,
    _remove,
    _repeat,
)
