"""Loading the drafter of each method that is to be compared."""

import sys
from collections.abc import Callable, Collection, Mapping

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.errors import ResolveError


def load_drafters(
    specs: Mapping[str, str],
    load: Callable[[str], LoadedMethod],
    *,
    optional: Collection[str] = (),
) -> dict[str, LoadedMethod]:
    """Load a drafter for each method, and say on stderr which one there is none for.

    Args:
        specs: Where the drafter of each method comes from.
        load: Loads one.
        optional: Methods to leave out if their drafter is not found.

    Raises:
        BenchUsageError: If a drafter is one of another method.
        ResolveError: If there is none for a method that is not optional.
        ModelError: If one cannot be loaded or does not fit the target.
    """
    drafters = {}
    for method, spec in specs.items():
        try:
            drafter = load(spec)
        except ResolveError as error:
            if method not in optional:
                raise
            print(f"without {method}: {error}", file=sys.stderr)
            continue
        name = drafter.method.spec.name
        if name != method:
            raise BenchUsageError(f"--{method} {spec} is a drafter of the method {name}")
        drafters[method] = drafter
    return drafters
