"""JSON that is nearly right."""

import json
import random
from collections.abc import Callable
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e308, -1e-300),
    *("", "x", "float32", "\0", "../../etc/passwd", "x" * 5000, "{{ 9**9 }}"),
    *([], {}, [None], [[]], [1, "x"], {"x": 1}, {"": {}}, ["x"] * 500),
)
_DEPTH = 100_000


def mutated_json(draw: random.Random, text: str) -> bytes:
    """Return JSON with one to three values changed; now and then nested very deep."""
    whole = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        whole = _changed(draw, whole)
    if draw.random() < 0.02:
        deep = draw.choice(("[", '{"a":')) * _DEPTH
        return (
            json.dumps(whole).replace("null", deep, 1).encode()
            if draw.random() < 0.5
            else (deep.encode())
        )
    # NaN and infinities are written as Python does, which is no JSON.
    return json.dumps(whole).encode()


def _changed(draw: random.Random, value: Any) -> Any:
    """Return a value in which one place is another value, is gone, or is there twice."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        return _in_mapping(draw, value, key)
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        how: tuple[Callable[[], Any], ...] = (
            lambda: [*value[:at], _changed(draw, value[at]), *value[at + 1 :]],
            lambda: [*value[:at], *value[at + 1 :]],
            lambda: [*value, value[at]],
        )
        return draw.choice(how)()
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
        return draw.choice((value + 1, value - 1, value * 2, -value, value * 10**6, str(value)))
    return draw.choice(_VALUES)


def _in_mapping(draw: random.Random, value: dict[str, Any], key: str) -> dict[str, Any]:
    chance = draw.random()
    if chance < 0.15:
        return {name: item for name, item in value.items() if name != key}
    if chance < 0.25:
        return value | {draw.choice(("x", "", "__class__", key + "_")): value[key]}
    return value | {key: _changed(draw, value[key])}
