"""Everything `bench decode` decodes with: the target, and a drafter for each method."""

import functools
import sys
from collections.abc import Callable, Collection, Mapping

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.decode.command import DecodeSettings
from blockdraft_bench.engine.loading import (
    Capacity,
    DecodingMethods,
    load_drafting,
    load_methods,
    whole_proposal,
)
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.errors import ResolveError
from blockdraft_runtime.settings.verifier import EngineSettings

DFLASH, EAGLE3 = "dflash", "eagle3"
LOOKUP = "lookup"
# Each with lookup beside the drafter.
_WITH_LOOKUP = {f"{method}+{LOOKUP}": method for method in (DFLASH, EAGLE3)}
_BY_LOOKUP = (LOOKUP, *_WITH_LOOKUP)


def set_up(
    settings: DecodeSettings, on_compiled: Callable[[int, int], None]
) -> tuple[DecodingMethods, dict[str, int]]:
    """Load target and drafters, and compile all that decoding needs.

    Args:
        settings: What to load.
        on_compiled: Told how many of how many steps of an engine are compiled.

    Returns:
        What decodes, and the tokens of a whole proposal of each method, 0 for plain decoding.

    Raises:
        BenchUsageError: If a drafter is of another method, or cannot draft so many tokens.
        ModelError: If a model cannot be loaded, or they do not fit.
    """
    target, wanted = settings.prompts.target, settings.method
    capacity = Capacity(1, settings.prompts.context_tokens, settings.dtype)
    specs = {DFLASH: settings.dflash, EAGLE3: settings.eagle3}
    load = functools.partial(
        load_drafting, target, capacity=capacity, block_size=settings.block_size
    )
    drafters: dict[str, LoadedMethod | None] = {
        **load_drafters(
            {method: spec for method, spec in specs.items() if not wanted or method in wanted},
            load,
            # Not every target has a drafter of this method; whoever names one, wants it.
            optional=[EAGLE3] if not wanted and settings.eagle3 == EAGLE3 else [],
        )
    }
    if LOOKUP in wanted:
        drafters[LOOKUP] = None
    for both, method in _WITH_LOOKUP.items():
        if both in wanted:
            # One of its own: a drafter has context slots for one engine.
            drafters[both] = load_drafters({method: specs[method]}, load)[method]
    lengths = {
        method: whole_proposal(settings.draft_length, _largest_block(method, drafter))
        for method, drafter in drafters.items()
    }
    methods = load_methods(
        target,
        drafters,
        capacity,
        settings.draft_policy,
        by_lookup=_BY_LOOKUP,
    )
    for engine in methods.engines:
        engine.warm_up(on_compiled)
    return methods, {method: lengths.get(method, 0) for method in methods.decoders}


def _largest_block(method: str, drafter: LoadedMethod | None) -> int:
    """Return the most tokens of a verification, the target's newest token included."""
    own = 1 if drafter is None else drafter.method.spec.block_size
    return max(own, EngineSettings().lookup_block) if method in _BY_LOOKUP else own


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
