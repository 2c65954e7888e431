"""The processes of `blockdraft serve`, its settings and those of each process; no I/O."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.hosted import HostedSettings
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.settings.verifier import SliceSettings, VerifierSettings
from blockdraft_runtime.tpu import (
    OF_WHOLE_HOSTS,
    ChipSplit,
    TpuHost,
    default_split,
    drafter_environment,
    verifier_environment,
)

SERVER = Configuration("server", ServerSettings)
VERIFIER = Configuration("verifier", VerifierSettings)
DRAFTER = Configuration("drafter", DrafterSettings)
HOSTED = Configuration("hosted", HostedSettings)

# Exit status of `blockdraft` if its command line, or a file it names, is wrong.
USAGE_STATUS = 2
# As long as a server waits before it takes a verifier for away.
HANG_SECONDS = 5.0
# By name, so that nothing of it is imported to start it.
TRAINER_MODULE = "blockdraft_training.online"
# Verifier and drafter of one host talk over a unix socket, and so do its server and its verifier.
PEER_TLS = ("peer-tls-cert", "peer-tls-key", "peer-tls-ca")
# Beyond the time for which a process lets its calls go on.
_STOP_MARGIN_SECONDS = 10.0
PLACES = ("auto", "process", "hosted")
# Longest path that fits into a unix socket's address on Linux and macOS.
_MAX_SOCKET_PATH = 103


def parse_place(text: str) -> str:
    """Return where a drafter runs: one of `PLACES`, or the address of one elsewhere."""
    if text in PLACES or ":" in text:
        return text
    raise ValueError(f"must be {', '.join(PLACES)} or an address, host:port, got {text!r}")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All settings of `blockdraft serve`.

    A setting that several processes share, such as the target, exists once for all of them.
    Settings that `blockdraft serve` decides itself, such as addresses, are left out of the groups.
    """

    no_server: bool = setting(
        False,
        "start no server and ignore its settings; servers on other hosts connect to --peer-listen",
    )
    no_drafter: bool = setting(
        False,
        "start no drafter; nor is one started for a target for which `--drafter auto` finds none",
        common=True,
    )
    drafter_placement: str = setting(
        "auto",
        "where the drafter runs: in a `process` of its own, `hosted` by the verifier's on the same "
        "devices, or at the address of a `blockdraft drafter`; `auto` hosts it on a TPU, unless "
        "--tpu-split gives it chips",
        metavar="auto|process|hosted|HOST:PORT",
        parse=parse_place,
    )
    tpu_split: str | None = setting(
        None,
        "TPU chips of verifier and drafter in processes of their own, such as `2+2`; `V+0` decodes "
        "plainly; unset: all for a verifier that hosts the drafter or is alone, else half each",
        metavar="V+D",
    )
    tpu_host: str | None = setting(
        None,
        "the TPU this host has, such as `v5p-8` or `v5e-4`; unset: what TPU_ACCELERATOR_TYPE and "
        "TPU_TOPOLOGY say, if anything",
    )
    metrics_port: int | None = setting(
        None,
        "port of the server's Prometheus metrics; verifier, drafter, further servers and trainer "
        "take the next ones, in this order",
        minimum=1,
        common=True,
    )
    run_dir: Path | None = setting(
        None,
        "folder of the sockets between the processes; unset: a private temporary one",
    )
    hang_timeout_seconds: float = setting(
        HANG_SECONDS,
        "how long a ready process may leave health checks unanswered before it is killed and "
        "started again",
        flag="hang-timeout",
        above=0,
    )
    verifier: VerifierSettings = group(
        VerifierSettings,
        without=(
            "self-test",
            *("listen", "metrics-port", "drafter"),
            *("coordinator", "num-processes", "process-id"),
        ),
    )
    drafter: DrafterSettings = group(
        DrafterSettings, without=("listen", "metrics-port", "find", *PEER_TLS)
    )
    server: ServerSettings = group(ServerSettings, without=("metrics-port", "verifier", *PEER_TLS))

    def __post_init__(self) -> None:
        """Check the settings, as far as that is possible without the machine."""
        check(self)
        if self.no_server and self.verifier.peer_address is None:
            raise ValueError("--no-server needs --peer-listen")
        elsewhere = self.drafter_address
        if self.verifier.peer_tls and not (self.verifier.peer_address or elsewhere):
            raise ValueError("--peer-tls-cert needs --peer-listen, or a drafter elsewhere")
        if self.no_drafter and self.names_drafter:
            raise ValueError("--drafter and --no-drafter exclude each other")
        if elsewhere and (self.names_drafter or self.drafter.learning.enabled):
            raise ValueError(f"--drafter and --learn are settings of the drafter at {elsewhere}")
        if self.tpu_split is not None and (elsewhere or self.drafter_placement == "hosted"):
            raise ValueError(
                f"--drafter-placement {self.drafter_placement} and --tpu-split exclude each other"
            )
        if self.no_server and self.server.openai is not None:
            raise ValueError("--openai and --no-server exclude each other")

    @property
    def drafter_address(self) -> str | None:
        """The address of a drafter that is elsewhere; None if it is here, or there is none."""
        here = self.no_drafter or self.drafter_placement in PLACES
        return None if here else self.drafter_placement

    @property
    def names_drafter(self) -> bool:
        """Whether the settings name a drafter, beyond any that fits the target."""
        return self.drafter.drafter != DrafterSettings().drafter


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to start."""

    name: str  # name for messages
    command: tuple[str, ...]  # the program and its arguments
    # Where gRPC in plaintext reports SERVING once the child is ready; None for a child that serves
    # no requests: nothing waits for it, and its deaths end nothing.
    health_address: str | None
    stop_seconds: float = 40.0  # how long it may take to stop before it is killed
    # Its environment variables; None for those of this process.
    environment: Mapping[str, str] | None = None
    role: str | None = None  # children of one role are stopped together; None for a role of its own


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The settings of each process."""

    server: ServerSettings | None  # settings of the server; None for verifier and drafter alone
    verifier: VerifierSettings  # settings of the verifier
    drafter: DrafterSettings | None  # settings of the drafter; None for none on this host
    hosted: bool  # whether the drafter is in the verifier's process
    folder: Path  # the folder of the sockets between the processes
    host: TpuHost | None = None  # the TPU host this is; None without TPU
    # Environment variables that the processes inherit.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Variables that give a process its chips, by process.
    chips: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ServeSettings, folder: Path, environ: Mapping[str, str]) -> "ServePlan":
        """Return the plan for settings of `blockdraft serve`, on a host with this environment.

        `ValueError` if the folder's path is too long, or the chips cannot be split as asked for.
        """
        host = TpuHost.from_environment(environ, settings.tpu_host)
        elsewhere = settings.drafter_address
        here = not settings.no_drafter and elsewhere is None
        hosted = here and _hosted(settings, host)
        split = _split(settings, host, drafting=here and not hosted)
        drafting = hosted or (here and (split is None or split.drafter > 0))
        drafter, verifier, server = settings.drafter, settings.verifier, settings.server
        first = settings.metrics_port
        ports = [None if first is None else first + offset for offset in range(3)]
        drafter = replace(
            drafter, process=_at(drafter.process, _socket(folder, "drafter"), ports[2])
        )
        verifier = replace(
            verifier,
            drafter_address=drafter.process.address if drafting and not hosted else elsewhere,
            slice=SliceSettings.of(host),
            # Only the first process of a slice answers servers.
            peer_address=verifier.peer_address if host is None or host.worker_id == 0 else None,
            process=_at(verifier.process, _socket(folder, "verifier"), ports[1]),
        )
        server = replace(
            server,
            verifiers=(verifier.process.address,),
            model_name=server.served_name,
            process=replace(
                server.process,
                metrics_port=ports[0],
                control_address=server.process.control_address or _socket(folder, "server"),
            ),
        )
        # A process gets its settings on its command line; it must not read others by itself.
        left_out = SERVER.variables | VERIFIER.variables | DRAFTER.variables | HOSTED.variables
        if host and split and split.verifier < host.num_chips:
            left_out |= OF_WHOLE_HOSTS
        return cls(
            None if settings.no_server else server,
            verifier,
            drafter if drafting else None,
            hosted,
            folder,
            host,
            {name: value for name, value in environ.items() if name not in left_out},
            _chips(host, split) if host and split else {},
        )

    @property
    def follows(self) -> bool:
        """Whether this host only takes part in the steps of a verifier on another one."""
        return self.host is not None and self.host.worker_id > 0

    def children(self) -> list[ChildSpec]:
        """Return the processes in the order in which they stop: API server first."""
        verifier = self._child("verifier", VERIFIER.flags(self.verifier), self.verifier.process)
        if self.hosted and self.drafter is not None:
            flags = HOSTED.flags(HostedSettings(self.verifier, self.drafter))
            command = (sys.executable, "-m", "blockdraft_hosted", *flags)
            verifier = replace(verifier, command=command)
        if self.follows:
            return [verifier]
        children = []
        if self.server is not None:
            children += [self._server(self.server, number) for number in range(self.server.servers)]
        children.append(verifier)
        if self.drafter is not None and not self.hosted:
            children.append(
                self._child("drafter", DRAFTER.flags(self.drafter), self.drafter.process)
            )
        if self.drafter is not None and self.drafter.learning.enabled:
            children.append(self._trainer(self.drafter))
        return children

    @property
    def trainer_metrics_port(self) -> int | None:
        """The trainer's metrics port, behind those of all others; None without metrics."""
        if self.drafter is None or self.drafter.process.metrics_port is None:
            return None
        return self.drafter.process.metrics_port + (self.server.servers if self.server else 1)

    @property
    def learns(self) -> bool:
        """Whether a trainer is started."""
        return self.drafter is not None and self.drafter.learning.enabled and not self.follows

    def watching(self, metrics_port: int) -> "ServePlan":
        """Return the plan with a metrics port that tells the trainer if the verifier is busy."""
        process = replace(self.verifier.process, metrics_port=metrics_port)
        return replace(self, verifier=replace(self.verifier, process=process))

    def _trainer(self, drafter: DrafterSettings) -> ChildSpec:
        flags = [f"--target={drafter.target}", f"--drafter={drafter.drafter}"]
        if drafter.learning.directory is not None:
            flags.append(f"--directory={drafter.learning.directory}")
        metrics = self.verifier.process
        if metrics.metrics_port is not None:
            host = metrics.metrics_address
            host = "127.0.0.1" if host == "0.0.0.0" else host
            flags.append(f"--watch=http://{host}:{metrics.metrics_port}/metrics")
        if self.trainer_metrics_port is not None:
            flags.append(f"--metrics-port={self.trainer_metrics_port}")
            flags.append(f"--metrics-address={metrics.metrics_address}")
        return ChildSpec(
            name="trainer",
            command=(sys.executable, "-m", TRAINER_MODULE, *flags),
            health_address=None,
            # The chips belong to the others; the trainer computes on the remaining cores.
            environment={**self.environment, "JAX_PLATFORMS": "cpu"},
        )

    def _server(self, settings: ServerSettings, number: int) -> ChildSpec:
        """Return a server; the servers differ in control address and metrics port."""
        if number == 0:
            return self._child("server", SERVER.flags(settings), settings.process)
        name, first = f"server-{number + 1}", settings.process
        process = replace(
            first,
            # A named address is the first server's alone.
            control_address=_socket(self.folder, name),
            # The ports in between are the verifier's and the drafter's.
            metrics_port=None if first.metrics_port is None else first.metrics_port + 2 + number,
        )
        flags = SERVER.flags(replace(settings, process=process))
        return replace(self._child("server", flags, process), name=name)

    def _child(self, role: str, flags: tuple[str, ...], process: ProcessSettings) -> ChildSpec:
        return ChildSpec(
            name=role,
            role=role,
            command=(sys.executable, "-m", f"blockdraft_{role}", *flags),
            # The public address may need TLS, which a health check has not.
            health_address=process.control_address or process.address,
            stop_seconds=process.drain_seconds + _STOP_MARGIN_SECONDS,
            environment={**self.environment, **self.chips.get(role, {})},
        )


def _hosted(settings: ServeSettings, host: TpuHost | None) -> bool:
    """Return whether the verifier's process holds the drafter; ValueError if it cannot."""
    if settings.drafter_placement == "process":
        return False
    if host is not None and host.num_hosts > 1:
        if settings.drafter_placement == "hosted":
            raise ValueError("a verifier on a slice of several hosts cannot host the drafter")
        return False
    hosted = settings.drafter_placement == "hosted" or (
        host is not None and settings.tpu_split is None
    )
    if hosted and settings.verifier.engine.draft_groups > 1:
        raise ValueError(
            "--draft-groups 2 needs a drafter with a device of its own, not a hosted one"
        )
    return hosted


def _split(settings: ServeSettings, host: TpuHost | None, *, drafting: bool) -> ChipSplit | None:
    """Return the chips of verifier and of a drafter of its own process; None without TPU."""
    if host is None:
        if settings.tpu_split is not None:
            raise ValueError("--tpu-split needs a TPU: name it with --tpu-host, such as v5p-8")
        return None
    if settings.tpu_split is None:
        return default_split(host, drafting=drafting)
    split = ChipSplit.parse(settings.tpu_split)
    if settings.no_drafter and split.drafter:
        raise ValueError(f"--no-drafter and --tpu-split {split} exclude each other")
    if settings.names_drafter and not split.drafter:
        raise ValueError(
            f"--tpu-split {split} leaves no chips for --drafter {settings.drafter.drafter}"
        )
    return split


def _chips(host: TpuHost, split: ChipSplit) -> dict[str, dict[str, str]]:
    """Return the variables that give each process its chips."""
    chips = {"verifier": verifier_environment(host, split)}
    return chips | ({"drafter": drafter_environment(host, split)} if split.drafter else {})


def _at(process: ProcessSettings, address: str, metrics_port: int | None) -> ProcessSettings:
    return replace(process, address=address, metrics_port=metrics_port)


def _socket(folder: Path, role: str) -> str:
    path = str(folder.resolve() / f"{role}.sock")
    if len(path.encode()) > _MAX_SOCKET_PATH:
        raise ValueError(f"the path of the run folder is too long for a socket: {path}")
    return f"unix:{path}"
