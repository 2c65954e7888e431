"""Loading the target of a verifier onto its devices, those of other hosts included."""

import logging
import time
from dataclasses import replace
from typing import NamedTuple

import jax

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import placement_on_all_devices
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.progress import show_progress
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import VerifierSettings
from blockdraft_verifier.computation import Computation, compiler, device_kind
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.slice.mirror import (
    StepFollower,
    StepLeader,
    join_slice,
    start_slice,
)

logger = logging.getLogger(__name__)


class LoadedTarget(NamedTuple):
    """A target that is ready to be compiled; whether it is batch-invariant is not known yet.

    `mirror` is its part in running every step on all hosts, None for a single process.
    """

    runner: ModelRunner
    checkpoint: Checkpoint
    computation: Computation
    mirror: StepLeader | StepFollower | None


def load_target(settings: VerifierSettings) -> LoadedTarget:
    """Load the target, after the other processes of a slice have come.

    It raises `ValueError` if it cannot be loaded, or what the others run differs, and
    `RuntimeError` if they do not come.
    """
    if settings.slice is not None:
        start_slice(settings.slice)
    dtype = serving_dtype(settings.engine.dtype)
    started = time.perf_counter()
    placement = placement_on_all_devices()
    path = resolve_target(settings.target)
    with show_progress(f"Loading {settings.target}") as progress:
        decoder, checkpoint = load_decoder(
            path,
            dtype=dtype,
            weights=settings.engine.weights,
            placement=placement,
            progress=progress,
        )
    if jax.default_backend() == "tpu":
        decoder = ScannedDecoder(decoder, placement)
    logger.info(
        "loaded %s (%s) in %.1f s",
        checkpoint.config.name,
        checkpoint.fingerprint,
        time.perf_counter() - started,
    )
    computation = Computation(
        checkpoint.fingerprint,
        dtype.name,
        settings.engine.weights,
        device_kind(),
        jax.device_count(),
        compiler(),
    )
    mirror = None
    if settings.slice is not None:
        # Whatever shapes or contents of the steps depend on.
        what_runs = f"{computation.fingerprint} {settings.engine}"
        mirror = join_slice(settings.slice.leader_host, what_runs)
    runner = ModelRunner(
        decoder,
        settings.engine,
        None if placement is None else placement.mesh,
        mirror if isinstance(mirror, StepLeader) else None,
    )
    computation = replace(computation, product_forms=runner.product_forms)
    return LoadedTarget(runner, checkpoint, computation, mirror)


def report_compiled(done: int, total: int) -> None:
    """Log how many of how many steps are compiled."""
    logger.info("compiled %d of %d steps", done, total)
