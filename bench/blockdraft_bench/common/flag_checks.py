"""Checks of flags that several measurements share, before anything is loaded."""

import argparse
import math
from collections.abc import Mapping, Sequence

from blockdraft_bench.common.errors import BenchUsageError


def check_at_least(args: argparse.Namespace, bounds: Mapping[str, int]) -> None:
    """Check numbers against their lower bounds.

    Args:
        args: The parsed flags.
        bounds: Least value of each, by the flag's name in `args`.

    Raises:
        BenchUsageError: If one is too small.
    """
    for name, bound in bounds.items():
        value = getattr(args, name)
        if value < bound:
            flag = f"--{name.replace('_', '-')}"
            raise BenchUsageError(f"{flag} must be at least {bound}, got {value}")


def check_temperatures(temperatures: Sequence[float]) -> None:
    """Check the values of `--temperature`.

    Raises:
        BenchUsageError: If one is negative or no number, or two are equal.
    """
    if not all(math.isfinite(value) and value >= 0 for value in temperatures):
        raise BenchUsageError("--temperature must be 0 or more")
    if len(set(temperatures)) < len(temperatures):
        raise BenchUsageError("--temperature has the same number twice")
