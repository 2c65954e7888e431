"""Error bars: as long as the interval, never negative, none without an interval."""

import math

from blockdraft_bench.common.figure import error_bars
from blockdraft_bench.common.statistics import Estimate


def test_error_bars() -> None:
    below, above = error_bars(
        [
            Estimate(2.0, (1.5, 2.25), 8),
            Estimate(2.0, (2.1, 2.5), 8),  # percentiles can miss the value
            Estimate(2.0, (1.0, 1.9), 8),
        ]
    )
    assert (below, above) == ([0.5, 0.0, 1.0], [0.25, 0.5, 0.0])


def test_no_interval_has_no_bar() -> None:
    # Of length 0 it would look like certainty.
    assert all(math.isnan(length) for [length] in error_bars([Estimate(2.0)]))
