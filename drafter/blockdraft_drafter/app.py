"""The drafter process: load, warm up, serve, stop."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import grpc
import ml_dtypes
import numpy as np
from flax import nnx
from prometheus_client import REGISTRY, CollectorRegistry

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.programs import Capacity
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.serving import ServingVersion
from blockdraft_drafter.learning.start import begin_learning
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService, LoadedMethod
from blockdraft_drafter.session import SlotPool
from blockdraft_drafter.sources import obtain_drafter
from blockdraft_models.decoder.sharding import Placement, placement_on_all_devices
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.memory import cache_budget_bytes
from blockdraft_models.precision import cache_dtype, serving_dtype
from blockdraft_models.weights.loading import (
    EmbeddingAndHead,
    load_checkpoint_config,
    load_embedding_and_head,
)
from blockdraft_models.weights.progress import show_progress
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_protos.v1 import drafter_pb2, drafter_pb2_grpc
from blockdraft_runtime.event_loop import Loading, return_free_memory
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.shared_memory import socket_folder
from blockdraft_runtime.start_progress import Report, StartProgress
from blockdraft_runtime.status import add_strictly

logger = logging.getLogger(__name__)

SERVICE_NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name


# Share of the memory that weights leave; the target's KV cache needs the rest.
_SHARE_BESIDE_TARGET = 1 / 4


class HostTarget(NamedTuple):
    """The target of a drafter that shares its process and devices."""

    # Its embedding and head; None where a drafter cannot use their form.
    matrices: EmbeddingAndHead | None
    arrays: object  # all of its weights, a pytree
    # Held while a program is launched: devices must get the programs of two threads in one order.
    launching: AbstractContextManager[Any]
    report: Report  # of what is loaded here


class DrafterApp:
    """An `Application` of `blockdraft_runtime.process`; to be made in a running event loop."""

    role = "drafter"
    internal = True
    service_names: Sequence[str] = (SERVICE_NAME,)

    def __init__(
        self,
        settings: DrafterSettings,
        stop_requested: asyncio.Event,
        registry: CollectorRegistry = REGISTRY,
        *,
        kept_programs: KeptPrograms | None = None,
        host: HostTarget | None = None,
    ) -> None:
        """Load nothing yet.

        `stop_requested` is set when the method cannot draft any more: a supervisor starts afresh.
        `kept_programs` has programs that were compiled before.
        """
        self._settings, self._kept_programs, self._host = settings, kept_programs, host
        self._metrics = DrafterMetrics(registry)
        self._stop_requested = stop_requested
        self.loading, self._progress = Loading(), StartProgress()
        self.failed = False
        folder = socket_folder(settings.process.address)
        self.service = DrafterService(self._metrics, folder, self._fail)
        self._counts = LearningMetrics(registry, self.service.show_build)
        self._serving: ServingVersion | None = None
        self._learning: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to `server`."""
        add_strictly(drafter_pb2_grpc.add_DrafterServiceServicer_to_server, self.service, server)

    async def start(self) -> None:
        """Load the model and compile every shape, then accept calls."""
        count = self._metrics.recompilations.inc
        report = self._progress.report if self._host is None else self._host.report
        load = functools.partial(
            load_method,
            self._settings,
            count,
            self._counts,
            report,
            self._kept_programs,
            self._host,
        )
        loaded = await self.loading.run(load)
        self.service.serve(loaded)
        self._serving = loaded.serving
        if self._serving is not None:
            self._learning = asyncio.create_task(self._serving.run())

    async def drain(self) -> None:
        """Refuse calls and end the streams."""
        self.service.drain()

    async def stop(self) -> None:
        """Write the training samples; no call is in flight any more."""
        if self._learning is not None:
            self._learning.cancel()
        if self._serving is not None:
            await asyncio.to_thread(self._serving.close)

    def inspect(self) -> Mapping[str, object]:
        """Return the state of the service, or of loading until it serves."""
        return self.service.state() or self._progress.state

    def _fail(self) -> None:
        self.failed = True
        self._stop_requested.set()


def load_method(
    settings: DrafterSettings,
    on_recompilation: Callable[[], None] = lambda: None,
    counts: LearningMetrics | None = None,
    report: Report = lambda stage, count, total: None,
    kept_programs: KeptPrograms | None = None,
    host: HostTarget | None = None,
) -> LoadedMethod:
    """Load target parts and drafter, compile every shape and measure the steps.

    `host` is a target in the same process, whose loaded parts are used.
    """
    dtype = serving_dtype(settings.dtype)
    started = time.perf_counter()
    placement = placement_on_all_devices()
    path = resolve_target(settings.target)
    if host is not None and host.matrices is not None:
        target, checkpoint = host.matrices, load_checkpoint_config(path)
    else:
        with show_progress(f"Loading embedding and head of {settings.target}") as progress:
            target, checkpoint = load_embedding_and_head(
                path, dtype=dtype, placement=placement, progress=progress
            )
    report("loading the drafter", 0, 0)
    learning = None
    if settings.learning.enabled:
        learning = begin_learning(settings, checkpoint, dtype)
        drafter = learning.drafter
    else:
        drafter = obtain_drafter(
            settings.drafter,
            checkpoint,
            target_spec=settings.target,
            block_size=settings.block_size,
            num_layers=settings.draft_layers,
            dtype=dtype,
        )
    form = settings.feature_form
    if form == "auto":
        # The drafter's first linear map learns only from raw features.
        form = "raw" if learning is not None and learning.from_nothing else "projected"
    capacity = Capacity(
        max_sequences=settings.max_sequences,
        max_context_tokens=_most_positions(
            settings, drafter, target, checkpoint.config.max_position_embeddings, placement, host
        ),
        max_feature_rows=settings.max_feature_rows,
        feature_dtype=np.dtype(ml_dtypes.bfloat16),
        projected=form == "projected",
    )
    method = CompiledMethod(
        drafter,
        target,
        capacity,
        on_recompilation,
        placement=placement,
        kept_programs=kept_programs,
        launching=None if host is None else host.launching,
    )
    loaded = time.perf_counter()
    method.warm_up(functools.partial(report, "compiling drafts"))
    return_free_memory()
    logger.info(
        "drafter %s (%s) for target %s: loaded in %.1f s, warm in %.1f s, %.1f ms a step",
        method.spec.fingerprint,
        "trained" if method.spec.trained else "untrained",
        checkpoint.fingerprint,
        loaded - started,
        time.perf_counter() - loaded,
        1e3 * method.step_seconds[0],
    )
    serving = None if learning is None else learning.serve(method, counts)
    return LoadedMethod(method, SlotPool(settings.max_sequences), checkpoint.fingerprint, serving)


def _most_positions(
    settings: DrafterSettings,
    drafter: Drafter[Any],
    target: EmbeddingAndHead,
    limit: int,
    placement: Placement | None,
    host: HostTarget | None,
) -> int:
    """Return the positions of a slot: as set, or the target's `limit`, as far as memory allows.

    `target` are the matrices of the target that the drafter holds too.
    """
    weights = (nnx.state(drafter.model), target, None if host is None else host.arrays)
    share = 1 if host is None else _SHARE_BESIDE_TARGET
    config = drafter.model.config.decoder
    positions = min(settings.max_model_len or limit, limit)
    capacity = buffer.fitting_capacity(
        config,
        slots=settings.max_sequences,
        dtype=cache_dtype(target.embedding.dtype),
        budget_bytes=int(share * cache_budget_bytes(weights)),
        sharding=None if placement is None else buffer.HeadSharding.of(config, placement),
    )
    if capacity >= positions:
        return positions
    if capacity == 0:
        raise ValueError("there is no memory for the draft KV cache: lower --max-sequences")
    logger.warning(
        "memory holds the first %d tokens of a sequence; longer ones are decoded undrafted",
        capacity,
    )
    return capacity
