"""The verifier process: load, warm up, serve, drain; or follow the leader of a slice."""

import asyncio
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import grpc
from prometheus_client import REGISTRY

from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.start_times import StartTimes
from blockdraft_protos.v1 import verifier_pb2
from blockdraft_protos.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from blockdraft_runtime import version
from blockdraft_runtime.event_loop import Loading, return_free_memory
from blockdraft_runtime.settings.process import model_name
from blockdraft_runtime.settings.verifier import VerifierSettings
from blockdraft_runtime.start_progress import StartProgress
from blockdraft_runtime.status import add_strictly
from blockdraft_verifier.device.guest import GuestRunner
from blockdraft_verifier.drafting.hosted import HostedDrafter
from blockdraft_verifier.drafting.link import PROGRESS_SECONDS, DraftLink, GrpcDraftLink
from blockdraft_verifier.engine.guards import RecompilationGuard
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.engine.state import engine_state
from blockdraft_verifier.grammars.compilation import tokenizer_of
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.loading import load_target, report_compiled
from blockdraft_verifier.self_test import enforce
from blockdraft_verifier.service import Loaded, VerifierService
from blockdraft_verifier.slice.mirror import StepFollower, StepLeader

logger = logging.getLogger(__name__)

# A drafter may be started at the same time, and binds its address before it loads.
_UNREACHED_SECONDS = 5.0
_WATCH_SECONDS = 0.5
# At the first poll after the whole process stood still, the step has had no time to end.
_OVERDUE_POLLS = 2
# For telling callers; their streams cannot go on.
_LEAVE_SECONDS = 3.0


class VerifierApp:
    """The verifier; an `Application` of `blockdraft_runtime.process`."""

    role = "verifier"
    internal = True
    service_names: Sequence[str] = (
        verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name,
    )

    def __init__(
        self,
        settings: VerifierSettings,
        stop_requested: asyncio.Event,
        *,
        kept_programs: KeptPrograms | None = None,
        drafter: HostedDrafter | None = None,
    ) -> None:
        """Wire the parts; `start` loads the model, and finds compiled steps in `kept_programs`.

        A `drafter` in this process is loaded with it.
        """
        self._settings = settings
        self._kept_programs = kept_programs
        self._drafter = drafter
        self._stop_requested = stop_requested
        self._metrics = VerifierMetrics(REGISTRY)
        self._guard = RecompilationGuard(self._metrics.recompilations.inc)
        self.loading, self._progress = Loading(), StartProgress()
        self._service = VerifierService(self._progress.words)
        self._leader: StepLeader | None = None
        self._watching: asyncio.Task[None] | None = None
        self.engine: Engine | None = None
        self.failed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer."""
        add_strictly(add_VerifierServiceServicer_to_server, self._service, server)

    async def start(self) -> None:
        """Load the target, find the drafter, compile every step."""
        loop = asyncio.get_running_loop()

        def fail() -> None:
            self.failed = True
            loop.call_soon_threadsafe(self._stop_requested.set)

        self.engine = await self.loading.run(partial(self._load, fail))
        self._watching = asyncio.ensure_future(_watch(self.engine, fail))

    async def drain(self) -> None:
        """Refuse new requests."""
        self._service.drain()

    async def stop(self) -> None:
        """Stop the engine, then the other processes of a slice."""
        if self._watching is not None:
            self._watching.cancel()
        if self.engine is not None:
            await asyncio.to_thread(self.engine.stop)
        if self._drafter is not None:
            await asyncio.to_thread(self._drafter.stop)
        if self._leader is not None:
            self._leader.stop()

    def inspect(self) -> Mapping[str, object]:
        """Return the state of the engine, or the stage of its loading."""
        state = dict(self._progress.state) if self.engine is None else engine_state(self.engine)
        return state if self._drafter is None else {**state, "hosts": self._drafter.inspect()}

    def _load(self, on_failure: Callable[[], None]) -> Engine:
        settings, times = self._settings, None
        if self._kept_programs is not None:
            drafts = settings.drafter_address is not None or self._drafter is not None
            configuration = settings.target, settings.cache, settings.engine, drafts
            times = StartTimes(self._kept_programs, configuration)
            self._progress.last = times.last
        target = load_target(settings, self._progress.report, self._kept_programs, self._drafter)
        runner, checkpoint, computation, mirror, adapters = target
        if isinstance(mirror, StepLeader):
            self._leader = mirror
            mirror.channel.on_loss(partial(_leave, on_failure))
        vocab_size = checkpoint.config.vocab_size
        link: DraftLink | None = None
        if self._drafter is not None:
            link = self._drafter.connect(checkpoint)
        elif settings.drafter_address is not None:
            self._progress.report("waiting for the drafter")
            link = remote = GrpcDraftLink(settings.drafter_address, checkpoint, settings.peer_tls)
            # In a slice, requests would wait while steps are compiled for one that comes later.
            unreached = _UNREACHED_SECONDS if settings.slice is None else PROGRESS_SECONDS
            if remote.wait_while_it_loads(unreached) is None:
                logger.warning("no drafter yet at %s: decoding plainly", settings.drafter_address)
        # The processes of a slice compile at the same time, before they run anything else. A guest
        # borrows pages, but no states.
        alone = settings.slice is None and runner.layout.states is None
        guest = partial(GuestRunner, runner) if alone else None
        engine = Engine(
            runner,
            runner.settings,
            link,
            vocab_size,
            self._metrics,
            guard=self._guard,
            on_failure=on_failure,
            self_test=partial(enforce, allow_inexact=settings.engine.allow_inexact),
            guest=guest,
            spawn=self.loading.spawn,
        )
        grammars = GrammarCompiler(partial(tokenizer_of, settings.target, vocab_size))
        name = model_name(settings.target)
        started = time.perf_counter()
        engine.warm_up(self._report_compiled)
        return_free_memory()
        logger.info("warmed up in %.1f s", time.perf_counter() - started)
        self._metrics.build.labels(
            version(),
            name,
            computation.target_fingerprint,
            computation.dtype,
        ).set(1)
        engine.start()
        self._service.open(Loaded(engine, name, computation, vocab_size, grammars, adapters))
        self._progress.report("serving")
        if times is not None:
            times.write(self._progress.seconds)
        return engine

    def _report_compiled(self, count: int, total: int) -> None:
        if count < total:
            self._progress.report("compiling steps", count, total)
        else:
            self._progress.report("measuring steps")
        report_compiled(count, total)


class FollowerApp:
    """A process of a slice that does not lead: it mirrors the leader's steps, serving only health.

    `failed` says whether the leader was lost, or left before its end.
    """

    role = "verifier"
    internal = True
    service_names: Sequence[str] = ()

    def __init__(self, settings: VerifierSettings, stop_requested: asyncio.Event) -> None:
        """Load nothing yet."""
        self._settings = settings
        self._stop_requested = stop_requested
        self._follower: StepFollower | None = None
        self._compiled = asyncio.Event()
        self._ended = asyncio.Event()
        self.loading, self._progress = Loading(), StartProgress()
        self.failed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Serve nothing."""

    def inspect(self) -> Mapping[str, object]:
        """Say that this is a follower, and whether it takes part in steps yet."""
        compiled = self._compiled.is_set()
        return {"follows": True, "compiled": compiled, **({} if compiled else self._progress.state)}

    async def start(self) -> None:
        """Load the target, find the leader, compile what it compiles."""
        loop = asyncio.get_running_loop()
        load = partial(load_target, self._settings, self._progress.report)
        target = await self.loading.run(load)
        runner, follower = target.runner, target.mirror
        assert isinstance(follower, StepFollower)
        self._follower = follower

        def follow() -> None:
            try:
                follower.follow(runner, lambda: loop.call_soon_threadsafe(self._compiled.set))
            except Exception:
                logger.exception("cannot follow the leader any more")
                self.failed = True
            for event in (self._compiled, self._ended, self._stop_requested):
                loop.call_soon_threadsafe(event.set)

        threading.Thread(target=follow, name="follower", daemon=True).start()
        await self._compiled.wait()

    async def drain(self) -> None:
        """Go on until the leader has drained."""
        if self._follower is not None:
            try:
                async with asyncio.timeout(self._settings.process.drain_seconds):
                    await self._ended.wait()
            except TimeoutError:
                logger.warning("the leader goes on: leaving it")
                self.failed = True

    async def stop(self) -> None:
        """Leave the leader."""
        if self._follower is not None:
            self._follower.channel.close()


async def _watch(engine: Engine, on_failure: Callable[[], None]) -> None:
    """End the process when a step does not end."""
    polls = 0
    while polls < _OVERDUE_POLLS:
        await asyncio.sleep(_WATCH_SECONDS)
        polls = polls + 1 if engine.watch.overdue else 0
    logger.error("a step does not end; where the threads are:")
    faulthandler.dump_traceback(all_threads=True)
    _leave(on_failure)


def _leave(on_failure: Callable[[], None]) -> None:
    """End a process whose step under way may never end, as when its slice has lost another."""
    on_failure()
    leaving = threading.Timer(_LEAVE_SECONDS, os._exit, (1,))
    leaving.daemon = True
    leaving.start()
