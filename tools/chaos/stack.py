"""The real processes on a tiny target, with a proxy on every hop, under the real supervisor."""

import asyncio
import contextlib
import os
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
from flax import nnx
from tests.certificates import Authority
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.ports import free_ports
from tests.supervised import process_ids, serving
from tools.chaos.learning import LIMIT_BYTES, SHARE, trainer_command, write_drafter
from tools.chaos.proxy import Proxy
from tools.chaos.schedule import HOPS

from blockdraft_client import AsyncClient, TLSConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_protos.v1 import verifier_pb2
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceStub
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings, TlsSettings
from blockdraft_runtime.settings.verifier import (
    CacheSettings,
    EngineSettings,
    SchedulerSettings,
    VerifierSettings,
)
from blockdraft_server.supervise.plan import DRAFTER, SERVER, VERIFIER, ChildSpec
from blockdraft_server.supervise.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
READY_SECONDS = 300.0
HANG_SECONDS = 6.0
ASK_SECONDS = 30.0
SEQUENCES, STEP_TOKENS = 8, 16
VERIFIERS = ("verifier-1", "verifier-2")
# Programs run for milliseconds here: compiling them is most of a restart.
ENVIRONMENT = {
    **os.environ,
    "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "chaos"),
    # All of it was completed before.
    "BLOCKDRAFT_SERVE_RECENT_COMPLETIONS": "0",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
}


@dataclass(frozen=True, slots=True)
class Size:
    """What a process has."""

    mib: float  # resident memory
    descriptors: int  # open files and sockets
    threads: int  # threads

    @classmethod
    def of(cls, process: int) -> "Size":
        """Look at a process."""
        found = psutil.Process(process)
        return cls(found.memory_info().rss / 2**20, found.num_fds(), found.num_threads())


class Stack:
    """Server, two verifiers, a drafter, and the proxies between them.

    Attributes:
        supervisor: Starts the processes, and what dies again.
        proxies: By hop.
        address: Of the server, behind its proxy.
        server: Of the server itself.
        log: What the processes say.
        target: The checkpoint they serve.
        learning: Where the drafter records, and finds its versions.
    """

    def __init__(
        self,
        folder: Path,
        max_waiting: int = 256,
        learns: bool = False,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """Start nothing yet; the path of `folder`, for sockets and all else, must be short."""
        write_hf_checkpoint(Decoder(tiny_config(num_layers=5), rngs=nnx.Rngs(0)), folder / "target")
        self._folder = folder
        self._authority = Authority("chaos")
        self._authority.issue().write(folder)
        self.target, self.learning = folder / "target", folder / "learn"
        self._learns = learns
        if learns:
            write_drafter(self.target, folder / "drafter")
        ports = free_ports(4)
        self._metrics = {"server": ports, "verifier-1": 0, "verifier-2": 0, "drafter": ports + 1}
        server, front = f"127.0.0.1:{ports + 2}", f"127.0.0.1:{ports + 3}"
        self.address, self.server = front, server
        ends = {"client-server": (front, server)}
        for name in VERIFIERS:
            ends[f"server-{name}"] = self.socket(f"to-{name}"), self.socket(name)
            ends[f"{name}-drafter"] = self.socket(f"{name}-d"), self.socket("drafter")
        self.proxies = {hop: Proxy(*ends[hop]) for hop in HOPS}
        self.log = folder / "log"
        self._sink = self.log.open("wb")
        children = [self._server(server, max_waiting), *map(self._verifier, VERIFIERS)]
        children += [self._drafter(), *([self._trainer()] if learns else [])]
        self.supervisor = Supervisor(children, sink=self._sink, hang_seconds=hang_seconds)

    def socket(self, name: str) -> str:
        """Return the address of a socket in the stack's folder."""
        return f"unix:{self._folder}/{name}.sock"

    def client(self) -> AsyncClient:
        """Return a client with a connection of its own, through the proxy."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        tls = TLSConfig(self._authority.certificate, server_name="localhost")
        return AsyncClient(self.address, timeout=READY_SECONDS, tls=tls, channel_options=options)

    def channel(self, name: str) -> grpc.aio.Channel:
        """Return a channel to what a process serves its callers, past the proxies."""
        if name != "server":
            return grpc.aio.insecure_channel(self.socket(name))
        credentials = grpc.ssl_channel_credentials(self._authority.certificate)
        options = (("grpc.ssl_target_name_override", "localhost"),)
        return grpc.aio.secure_channel(self.server, credentials, options=options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run everything for as long as the context lasts; begins when all of it serves."""
        for proxy in self.proxies.values():
            await proxy.start()
        stop, ready = asyncio.Event(), asyncio.Event()

        async def on_ready() -> None:
            ready.set()

        running = asyncio.create_task(self.supervisor.run(stop, on_ready))
        try:
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait(
                {waiting, running},
                timeout=READY_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ready.is_set():
                raise RuntimeError(f"the stack is not up:\n{self.log.read_text()[-3000:]}")
            await self.until_whole()
            yield
        finally:
            stop.set()
            for proxy in self.proxies.values():
                await proxy.close()
            await running
            self._sink.close()

    def sizes(self) -> dict[str, Size]:
        """Look at the processes."""
        return {name: Size.of(process) for name, process in process_ids(self.supervisor).items()}

    def lives(self, name: str) -> bool:
        """Return whether a process is there and serves, if it serves anybody."""
        supervisor = self.supervisor
        return name in (supervisor.children if name == "trainer" else serving(supervisor))

    async def until_whole(self) -> None:
        """Wait until every process serves and both verifiers have the drafter."""
        async with asyncio.timeout(READY_SECONDS):
            while not await self._whole():
                await asyncio.sleep(0.2)
            async with self.client() as client:
                await client.wait_ready(READY_SECONDS)

    async def _whole(self) -> bool:
        if len(serving(self.supervisor)) < len(VERIFIERS) + 2:
            return False
        with contextlib.suppress(grpc.aio.AioRpcError):
            return all([await self._drafting(name) for name in VERIFIERS])
        return False

    async def _drafting(self, name: str) -> bool:
        async with grpc.aio.insecure_channel(self.socket(name)) as channel:
            answer = await VerifierServiceStub(channel).Describe(
                verifier_pb2.VerifierServiceDescribeRequest(), timeout=ASK_SECONDS
            )
        return answer.HasField("drafter")

    async def held(self) -> dict[str, float]:
        """Return what requests hold, by name: sequences and pages, contexts, requests."""
        held: dict[str, float] = {}
        for name in VERIFIERS:
            async with grpc.aio.insecure_channel(self.socket(name)) as channel:
                load = await VerifierServiceStub(channel).GetLoad(
                    verifier_pb2.GetLoadRequest(), timeout=ASK_SECONDS
                )
            held[f"{name} sequences"] = load.running_sequences + load.waiting_sequences
            held[f"{name} pages"] = load.used_pages
        held["draft KV caches"] = await self.metric(
            "drafter", "blockdraft_drafter_kv_cache_sequences"
        )
        for state in ("waiting", "running"):
            name = f"blockdraft_server_requests_{state}"
            held[f"server requests {state}"] = await self.metric("server", name)
        return held

    async def metric(self, process: str, name: str) -> float:
        """Return a metric without labels of server or drafter."""

        def read() -> float:
            url = f"http://127.0.0.1:{self._metrics[process]}/metrics"
            with urllib.request.urlopen(url, timeout=ASK_SECONDS) as response:
                lines = response.read().decode().splitlines()
            [value] = [line.rsplit(" ", 1)[1] for line in lines if line.split(" ")[0] == name]
            return float(value)

        return await asyncio.to_thread(read)

    def _server(self, address: str, max_waiting: int) -> ChildSpec:
        settings = ServerSettings(
            target=str(self.target),
            verifiers=tuple(self.proxies[f"server-{name}"].address for name in VERIFIERS),
            tls=TlsSettings(self._folder / "cert.pem", self._folder / "key.pem"),
            limits=LimitsSettings(max_waiting=max_waiting),
            process=ProcessSettings(
                address,
                metrics_port=self._metrics["server"],
                control_address=self.socket("server"),
                drain_seconds=5.0,
            ),
        )
        return self._child("server", "server", SERVER.flags(settings))

    def _verifier(self, name: str) -> ChildSpec:
        settings = VerifierSettings(
            target=str(self.target),
            drafter_address=self.proxies[f"{name}-drafter"].address,
            # Fewer pages than all sequences could want: some are preempted.
            cache=CacheSettings(max_model_len=256, num_pages=64),
            engine=EngineSettings(
                scheduler=SchedulerSettings(max_sequences=SEQUENCES, max_step_tokens=STEP_TOKENS),
                dtype="bfloat16",
                draft_policy="fixed",
            ),
            process=ProcessSettings(self.socket(name), drain_seconds=5.0),
        )
        return self._child(name, "verifier", VERIFIER.flags(settings))

    def _drafter(self) -> ChildSpec:
        settings = DrafterSettings(
            target=str(self.target),
            drafter=str(self._folder / "drafter") if self._learns else "random",
            max_sequences=2 * SEQUENCES,
            max_model_len=256,
            dtype="bfloat16",
            learning=LearningSettings(self._learns, self.learning, LIMIT_BYTES, SHARE),
            process=ProcessSettings(
                self.socket("drafter"), metrics_port=self._metrics["drafter"], drain_seconds=5.0
            ),
        )
        return self._child("drafter", "drafter", DRAFTER.flags(settings))

    def _trainer(self) -> ChildSpec:
        command = trainer_command(self.target, self._folder / "drafter", self.learning)
        # It compiles anew for each version that it learns from.
        environment = {**ENVIRONMENT, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return ChildSpec("trainer", command, None, stop_seconds=15.0, environment=environment)

    def _child(self, name: str, role: str, flags: tuple[str, ...]) -> ChildSpec:
        return ChildSpec(
            name=name,
            role=role,
            command=(sys.executable, "-m", f"blockdraft_{role}", *flags),
            health_address=self.socket(name),
            stop_seconds=15.0,
            environment=ENVIRONMENT,
        )


@contextlib.asynccontextmanager
async def running_stack(
    max_waiting: int = 256, learns: bool = False, hang_seconds: float = HANG_SECONDS
) -> AsyncIterator[Stack]:
    """Run a stack in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        stack = Stack(Path(folder), max_waiting, learns, hang_seconds)
        async with stack.running():
            yield stack
