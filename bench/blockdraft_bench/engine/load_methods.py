"""Loading one target with several drafters, each in an engine of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft_bench.common.timed_answers import PLAIN
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.load_pair import Dtype, engine_config
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.dtypes import compute_dtype
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import DraftPolicy


@dataclass(frozen=True, slots=True)
class LoadedMethods:
    """A target and the ways to decode with it.

    Attributes:
        target: The target; its weights are in memory once, whatever the number of methods.
        checkpoint: What it was loaded from.
        decoders: By method, `PLAIN` first. Which layers an engine takes features from is fixed
            when it compiles, so each drafter has its own; plain decoding uses the first of them,
            or one without a drafter if there is none.
    """

    target: Decoder
    checkpoint: Checkpoint
    decoders: Mapping[str, InProcessDecoder]

    @property
    def engines(self) -> tuple[InProcessDecoder, ...]:
        """The decoders, each once."""
        return tuple(dict.fromkeys(self.decoders.values()))


def load_methods(
    target: str,
    drafters: Mapping[str, LoadedMethod],
    *,
    context_tokens: int,
    dtype: Dtype,
    draft_policy: DraftPolicy,
) -> LoadedMethods:
    """Load the target and join it with each drafter, for one answer at a time.

    Args:
        target: A directory, `.gguf` file, hub id or the default's name.
        drafters: Drafters for it, by method.
        context_tokens: Most tokens of prompt and answer together.
        dtype: Element type of weights and cache.
        draft_policy: Of every engine.

    Returns:
        The methods; the engines' `warm_up` is yet to come.

    Raises:
        ModelError: If the target cannot be loaded.
        ValueError: If a drafter drafts for another target.
    """
    decoder, checkpoint = load_decoder(resolve_target(target), dtype=compute_dtype(dtype))

    def join(drafter: LoadedMethod | None) -> InProcessDecoder:
        block_size = 1 if drafter is None else drafter.method.spec.block_size
        config = engine_config(1, block_size, context_tokens, dtype, draft_policy)
        return InProcessDecoder(decoder, checkpoint, drafter, config)

    drafting = {method: join(drafter) for method, drafter in drafters.items()}
    plain = next(iter(drafting.values())) if drafting else join(None)
    return LoadedMethods(decoder, checkpoint, {PLAIN: plain, **drafting})
