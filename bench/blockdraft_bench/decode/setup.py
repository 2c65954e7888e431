"""Everything `bench decode` decodes with: models, engines, settings, from its flags."""

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.acceptance.measure import draft_length
from blockdraft_bench.decode.measure import DecodeSettings
from blockdraft_bench.engine.load_drafters import load_drafters
from blockdraft_bench.engine.load_methods import LoadedMethods, load_methods
from blockdraft_bench.engine.load_pair import load_drafting
from blockdraft_models.decoder.dtypes import compute_dtype

DFLASH, EAGLE3 = "dflash", "eagle3"


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What decodes, and how."""

    methods: LoadedMethods
    settings: DecodeSettings
    dtype: str

    def models_json(self) -> dict[str, Any]:
        """Return target and drafters as a JSON object."""
        target = self.methods.checkpoint
        drafters = {
            method: decoder.drafter
            for method, decoder in self.methods.decoders.items()
            if self.settings.draft_lengths[method]
        }
        return {
            "target": {"name": target.config.name, "fingerprint": target.fingerprint},
            "drafters": {
                method: {
                    "fingerprint": drafter.fingerprint,
                    "trained": drafter.trained,
                    "block_size": drafter.block_size,
                    "draft_length": self.settings.draft_lengths[method],
                }
                for method, drafter in drafters.items()
            },
        }

    def close(self) -> None:
        """End the drafters' sessions."""
        for engine in self.methods.engines:
            engine.close()


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
    context_tokens = args.max_prompt_tokens + args.max_tokens
    specs = {DFLASH: args.dflash, EAGLE3: args.eagle3}
    drafters = load_drafters(
        {m: spec for m, spec in specs.items() if args.method is None or m in args.method},
        functools.partial(
            load_drafting,
            args.target,
            block_size=args.block_size,
            concurrency=1,
            context_tokens=context_tokens,
            dtype=args.dtype,
        ),
        # Not every target has a drafter of this method; whoever names one, wants it.
        optional=[EAGLE3] if args.method is None and args.eagle3 == EAGLE3 else [],
    )
    lengths = {
        method: draft_length(args.draft_length, drafter.method.spec.block_size)
        for method, drafter in drafters.items()
    }
    methods = load_methods(
        args.target,
        drafters,
        context_tokens=context_tokens,
        dtype=args.dtype,
        draft_policy=args.draft_policy,
    )
    for engine in methods.engines:
        engine.warm_up(on_compiled)
    settings = DecodeSettings(
        max_tokens=args.max_tokens,
        draft_lengths={method: lengths.get(method, 0) for method in methods.decoders},
        draft_policy=args.draft_policy,
        stop_token_ids=stop_token_ids,
        seed=args.seed,
    )
    return DecodeSetup(methods, settings, str(compute_dtype(args.dtype)))
