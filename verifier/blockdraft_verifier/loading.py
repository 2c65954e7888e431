"""Loading the target of a verifier onto its devices, those of other hosts included."""

import logging
import time
from dataclasses import replace
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import placement_on_all_devices
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.memory import cache_budget_bytes
from blockdraft_models.precision import serving_dtype
from blockdraft_models.torch_target.loading import load_torch_decoder, torch_versions
from blockdraft_models.weights.adapters import Adapter, load_adapters
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.progress import show_progress
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.process import model_name, size_text
from blockdraft_runtime.settings.verifier import EngineSettings, VerifierSettings
from blockdraft_runtime.start_progress import Report
from blockdraft_verifier.computation import Computation, compiler, device_kind
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.sizes import cache_layout, for_canvases, page_size_on_tpu, sized
from blockdraft_verifier.drafting.hosted import HostedDrafter
from blockdraft_verifier.slice.mirror import (
    StepFollower,
    StepLeader,
    join_slice,
    start_slice,
)

logger = logging.getLogger(__name__)


class LoadedTarget(NamedTuple):
    """A target that is ready to be compiled; whether it is batch-invariant is not known yet.

    `mirror` is its part in running every step on all hosts, None for a single process; `adapters`
    are the names of its adapters.
    """

    runner: ModelRunner
    checkpoint: Checkpoint
    computation: Computation
    mirror: StepLeader | StepFollower | None
    adapters: tuple[str, ...]


def load_target(
    settings: VerifierSettings,
    report: Report = lambda stage, count, total: None,
    kept_programs: KeptPrograms | None = None,
    drafter: HostedDrafter | None = None,
) -> LoadedTarget:
    """Load the target, once the other processes of a slice have come.

    Compiled steps may be in `kept_programs`. A `drafter` is loaded onto the same devices before the
    memory that is left becomes pages. Raises `ValueError` if the target cannot be loaded, or the
    other processes run something else, and `RuntimeError` if they do not come.
    """
    if settings.slice is not None:
        start_slice(settings.slice)
    dtype = serving_dtype(settings.engine.dtype)
    started = time.perf_counter()
    placement = placement_on_all_devices()
    path = resolve_target(settings.target)
    adapters: tuple[Adapter, ...] = ()
    with show_progress(f"Loading {settings.target}") as progress:

        def shown(loaded_bytes: int, total: int) -> None:
            progress(loaded_bytes, total)
            report("loading weights", loaded_bytes, total)

        if settings.engine.implementation == "torch":
            decoder, checkpoint = load_torch_decoder(path, dtype=dtype, placement=placement)
            computed_by = f"{compiler()}, {torch_versions()}"
        else:
            decoder, checkpoint = load_decoder(
                path,
                dtype=dtype,
                weights=settings.engine.weights,
                placement=placement,
                progress=shown,
            )
            computed_by = compiler()
            if settings.adapters is not None:
                adapters = load_adapters(decoder, settings.adapters, placement)
            if jax.default_backend() == "tpu":
                decoder = ScannedDecoder(decoder, placement)
    logger.info(
        "loaded %s (%s) in %.1f s",
        model_name(settings.target),
        checkpoint.fingerprint,
        time.perf_counter() - started,
    )
    mesh = None if placement is None else placement.mesh
    beside = () if drafter is None else drafter.load(decoder, report)
    engine = sized_for(decoder, settings, mesh, beside)
    computation = Computation(
        checkpoint.fingerprint,
        dtype.name,
        settings.engine.weights,
        settings.engine.kv_cache_dtype,
        device_kind(),
        jax.device_count(),
        computed_by,
        adapters=tuple(f"{adapter.name}:{adapter.fingerprint}" for adapter in adapters),
    )
    mirror = None
    if settings.slice is not None:
        # All that the shapes and contents of the steps depend on.
        what_runs = f"{computation.fingerprint} {engine}"
        mirror = join_slice(settings.slice.leader_host, what_runs)
    runner = ModelRunner(
        decoder,
        engine,
        mesh,
        mirror if isinstance(mirror, StepLeader) else None,
        kept_programs,
    )
    if drafter is not None:
        runner.launching = drafter.launching
    names = tuple(adapter.name for adapter in adapters)
    return LoadedTarget(runner, checkpoint, computation, mirror, names)


def sized_for(
    decoder: Decoder, settings: VerifierSettings, mesh: Mesh | None, beside: object = ()
) -> EngineSettings:
    """Return the engine's settings with the sizes that a target and its devices allow.

    The arrays of `beside`, a pytree, are on these devices too.
    """
    engine, limit = settings.engine, decoder.config.max_position_embeddings
    if decoder.config.diffusion is not None:
        engine = for_canvases(engine, decoder.config.diffusion)
    if jax.default_backend() == "tpu":
        longest = min(settings.cache.max_model_len or limit, limit)
        size = page_size_on_tpu(engine.page_size, engine.scheduler.max_sequences, longest)
        if size != engine.page_size:
            logger.info("pages of %d tokens, whose table fits into scalar memory", size)
        engine = replace(engine, page_size=size)
    layout = cache_layout(decoder, engine, mesh)
    page_bytes, state_bytes = layout.page_bytes, layout.states.bytes if layout.states else 0
    if state_bytes:
        counts = engine.scheduler.max_sequences, engine.state_snapshots
        text = size_text(state_bytes)
        logger.info("states of %d sequences and %d snapshots take %s", *counts, text)
    engine = sized(
        engine,
        settings.cache,
        model_limit=limit,
        page_bytes=page_bytes,
        budget_bytes=cache_budget_bytes((nnx.state(decoder), beside), state_bytes),
    )
    longest, diffusion = engine.scheduler.max_context_tokens, decoder.config.diffusion
    if diffusion is not None and longest <= diffusion.canvas_tokens:
        raise ValueError(
            f"a context of {longest} tokens leaves no room beside a canvas of "
            f"{diffusion.canvas_tokens}"
        )
    pages = [-(-tokens // engine.page_size) for tokens in (longest, max(1, longest // 8))]
    logger.info(
        "a KV cache of %s: %d sequences of %d tokens, the longest, or %d of %d",
        size_text(engine.num_pages * page_bytes),
        engine.num_pages // pages[0],
        longest,
        engine.num_pages // pages[1],
        pages[1] * engine.page_size,
    )
    return engine


def report_compiled(count: int, total: int) -> None:
    """Log how many of the steps are compiled."""
    logger.info("compiled %d of %d steps", count, total)
