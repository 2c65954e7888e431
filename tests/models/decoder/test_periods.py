"""Layers of several forms are cut into periods that repeat."""

import pytest
from tests.models.tiny import LIKE_GEMMA4, LIKE_OLMO3, tiny_config

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.periods import Period, periods


def like_gemma4(pattern: str, shared: int = 0) -> DecoderConfig:
    """Return a decoder with a window in layers `s`, and none in layers `f`."""
    windows = tuple(10 if kind == "s" else 0 for kind in pattern)
    shape = {**LIKE_GEMMA4, "windows": windows, "shared_kv_layers": shared}
    return tiny_config(**shape, num_layers=len(windows))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tiny_config(num_layers=36), [Period(0, 1, 36)]),
        # Windows are told apart within the scan where heads have one width.
        (tiny_config(**LIKE_OLMO3, num_layers=2), [Period(0, 1, 2)]),
        # Those of 31B, E4B and E2B.
        (like_gemma4("sssssf" * 10), [Period(0, 6, 10)]),
        (like_gemma4("sssssf" * 7, shared=18), [Period(0, 6, 4), Period(24, 6, 3)]),
        (like_gemma4("ssssf" * 7, shared=20), [Period(0, 5, 3), Period(15, 5, 4)]),
        # Layers that fill no period.
        (like_gemma4("sssf"), [Period(0, 1, 3), Period(3, 1, 1)]),
        (like_gemma4("sfsfsss"), [Period(0, 2, 2), Period(4, 1, 3)]),
        (like_gemma4("fsf", shared=1), [Period(0, 1, 1), Period(1, 1, 1), Period(2, 1, 1)]),
    ],
)
def test_the_longest_come_first(config: DecoderConfig, expected: list[Period]) -> None:
    assert list(periods(config)) == expected
    layers = [range(config.num_layers)[place] for part in expected for place in part.places()]
    assert sorted(layer for place in layers for layer in place) == list(range(config.num_layers))
