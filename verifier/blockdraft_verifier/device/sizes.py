"""The context length, and the form and number of pages, from the model and the memory."""

import math
from dataclasses import replace

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.diffusion import Diffusion, NoiseDiffusion
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.precision import cache_dtype
from blockdraft_runtime.settings.process import Size, size_text
from blockdraft_runtime.settings.verifier import CacheSettings, EngineSettings
from blockdraft_verifier.device.cache import CacheLayout
from blockdraft_verifier.device.states import StateLayout

_MIB = 1 << 20
# Half of the scalar memory of a TPU core, where kernels find the page table of a step.
_PAGE_TABLE_BYTES = 1 << 19
_ENTRY_BYTES = 4
# Tokens of a context that an attention kernel reads at once.
_LARGEST_PAGE_TOKENS = 512


def cache_layout(decoder: Decoder, settings: EngineSettings, mesh: Mesh | None) -> CacheLayout:
    """Return the layout of the cache of a target whose weights are on the devices of a mesh."""
    scanned, dtype = isinstance(decoder, ScannedDecoder), cache_dtype(decoder.dtype)
    layout = CacheLayout.of(
        decoder.config,
        settings.num_pages,
        settings.page_size,
        cache_dtype(decoder.dtype, settings.kv_cache_dtype),
        mesh=mesh,
        stacked=scanned,
        fp8=settings.kv_cache_dtype == "fp8",
        states=StateLayout.of(
            decoder.config,
            settings.scheduler.max_sequences,
            dtype,
            mesh,
            stacked=scanned,
            snapshots=settings.state_snapshots,
        ),
    )
    slots = settings.scheduler.max_sequences
    return replace(layout, signals=canvas_signals(decoder.config, slots, decoder.dtype))


def canvas_signals(
    config: DecoderConfig, slots: int, dtype: DTypeLike
) -> jax.ShapeDtypeStruct | None:
    """Return the signals of so many canvases, None if they do not begin as noise."""
    if not isinstance(config.diffusion, NoiseDiffusion):
        return None
    shape = slots, config.diffusion.canvas_tokens, config.hidden_size
    return jax.ShapeDtypeStruct(shape, dtype)


def for_canvases(settings: EngineSettings, diffusion: Diffusion) -> EngineSettings:
    """Return the settings with pages of whole canvases, and steps that hold one beside a prompt."""
    limits, page_size = settings.scheduler, math.lcm(settings.page_size, diffusion.grain)
    least = diffusion.most_row_tokens + diffusion.grain
    scheduler = replace(limits, max_step_tokens=max(limits.max_step_tokens, least))
    return replace(settings, page_size=page_size, scheduler=scheduler)


def page_size_on_tpu(page_size: int, max_sequences: int, max_tokens: int) -> int:
    """Return the page size, in tokens, doubled until the page table fits into scalar memory.

    `ValueError` if it never does.
    """
    rows = next_power_of_two(max_sequences)  # of the largest step
    least, pages = page_size, _PAGE_TABLE_BYTES // (_ENTRY_BYTES * rows)
    while pages * page_size < max_tokens:
        page_size *= 2
        if page_size > max(least, _LARGEST_PAGE_TOKENS):
            raise ValueError(
                f"the page table of {max_sequences} sequences of {max_tokens} tokens takes more "
                f"than {_PAGE_TABLE_BYTES >> 10} KiB of scalar memory with pages of "
                f"{page_size // 2} tokens: lower --max-sequences or --max-model-len"
            )
    return page_size


def sized(
    settings: EngineSettings,
    cache: CacheSettings,
    *,
    model_limit: int,
    page_bytes: int,
    budget_bytes: int,
) -> EngineSettings:
    """Return the settings with context length and pages: as asked, or else as memory allows.

    A model was made for sequences of `model_limit` tokens. A page takes `page_bytes` of a device,
    which has `budget_bytes` for the cache where no size was asked for.

    `ValueError` if the sizes asked for contradict the model, the memory or each other.
    """
    max_tokens = cache.max_model_len or model_limit
    if max_tokens > model_limit:
        raise ValueError(
            f"--max-model-len {max_tokens} is more than the {model_limit} tokens the model was "
            "made for"
        )
    pages_of_one = -(-max_tokens // settings.page_size)
    pages = cache.num_pages
    if pages is None and cache.kv_cache_bytes is not None:
        pages = cache.kv_cache_bytes // page_bytes
    elif pages is None:
        pages = min(budget_bytes // page_bytes, settings.scheduler.max_sequences * pages_of_one)
    if pages < pages_of_one and cache.max_model_len is None:
        max_tokens = pages * settings.page_size
    if pages == 0 or pages * settings.page_size < max_tokens:
        needed = Size(-(-pages_of_one * page_bytes // _MIB) * _MIB)
        raise ValueError(
            f"the KV cache of {size_text(pages * page_bytes)} holds {pages * settings.page_size} "
            f"tokens, and a sequence may have {cache.max_model_len or model_limit}: lower "
            f"--max-model-len or raise --kv-cache-memory to {needed}"
        )
    scheduler = replace(settings.scheduler, max_context_tokens=max_tokens)
    return replace(settings, scheduler=scheduler, num_pages=pages)
