"""Everything `bench decode` decodes with: models, engines, settings, from its flags."""

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.decode.report import MethodDrafter
from blockdraft_bench.engine.loading import (
    Capacity,
    DecodingMethods,
    load_drafting,
    load_methods,
    whole_proposal,
)
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.errors import ResolveError
from blockdraft_runtime.settings.verifier import DraftPolicy

DFLASH, EAGLE3 = "dflash", "eagle3"


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How answers are decoded.

    Attributes:
        max_tokens: Most tokens of an answer.
        draft_lengths: Tokens of a whole proposal of each method, 0 for plain decoding.
        draft_policy: Whether the engine may draft less where that is faster.
        stop_token_ids: Tokens that end an answer.
        seed: Of the sampling and of the intervals; each sample has its own, made from this.
    """

    max_tokens: int
    draft_lengths: Mapping[str, int]
    draft_policy: DraftPolicy
    stop_token_ids: frozenset[int]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What decodes, and how."""

    methods: DecodingMethods
    settings: DecodeSettings

    def drafters(self) -> dict[str, MethodDrafter]:
        """Return what a report says of the drafters."""
        return {
            method: MethodDrafter(
                drafter.fingerprint, drafter.trained, drafter.block_size, draft_length
            )
            for method, draft_length in self.settings.draft_lengths.items()
            if draft_length
            for drafter in [self.methods.decoders[method].drafter]
        }


def set_up(
    args: argparse.Namespace,
    stop_token_ids: frozenset[int],
    on_compiled: Callable[[int, int], None],
) -> DecodeSetup:
    """Load target and drafters, and compile all that decoding needs.

    Args:
        args: The flags of `bench decode`.
        stop_token_ids: Tokens that end an answer.
        on_compiled: Told how many of how many steps of an engine are compiled.

    Raises:
        BenchUsageError: If a drafter is of another method, or cannot draft so many tokens.
        ModelError: If a model cannot be loaded, or they do not fit.
    """
    capacity = Capacity(1, args.max_prompt_tokens + args.max_tokens, args.dtype)
    specs = {DFLASH: args.dflash, EAGLE3: args.eagle3}
    drafters = load_drafters(
        {m: spec for m, spec in specs.items() if args.method is None or m in args.method},
        functools.partial(
            load_drafting, args.target, capacity=capacity, block_size=args.block_size
        ),
        # Not every target has a drafter of this method; whoever names one, wants it.
        optional=[EAGLE3] if args.method is None and args.eagle3 == EAGLE3 else [],
    )
    lengths = {
        method: whole_proposal(args.draft_length, drafter.method.spec.block_size)
        for method, drafter in drafters.items()
    }
    methods = load_methods(args.target, drafters, capacity, args.draft_policy)
    for engine in methods.engines:
        engine.warm_up(on_compiled)
    settings = DecodeSettings(
        max_tokens=args.max_tokens,
        draft_lengths={method: lengths.get(method, 0) for method in methods.decoders},
        draft_policy=args.draft_policy,
        stop_token_ids=stop_token_ids,
        seed=args.seed,
    )
    return DecodeSetup(methods, settings)


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
