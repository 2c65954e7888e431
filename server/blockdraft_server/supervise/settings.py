"""What `blockdraft serve` is told: what its processes are told, but for what it decides itself."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_runtime.configuration.definition import check, group, setting
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.settings.verifier import VerifierSettings

# Verifier and drafter of one host talk by a unix socket, and so do its server and its verifier.
PEER_TLS = ("peer-tls-cert", "peer-tls-key", "peer-tls-ca")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything `blockdraft serve` is told.

    What several processes share, such as the target, is one setting for all of them.

    Attributes:
        verifier: What the verifier is told, addresses and slice apart.
        drafter: What the drafter is told, addresses apart.
        server: What the server is told, addresses of other processes apart.
    """

    no_server: bool = setting(
        False,
        "start no server, and use nothing that is said of it: those on other hosts come to "
        "--peer-listen",
    )
    no_drafter: bool = setting(
        False,
        "start no drafter; nor is one started for a target for which `--drafter auto` finds none",
        common=True,
    )
    tpu_split: str | None = setting(
        None,
        "TPU chips of verifier and drafter, such as `2+2`; `V+0` decodes plainly; unset: half "
        "each, or all for the verifier with --no-drafter",
        metavar="V+D",
        common=True,
    )
    tpu_host: str | None = setting(
        None,
        "the TPU this host has, such as `v5p-8` or `v5e-4`; unset: what TPU_ACCELERATOR_TYPE and "
        "TPU_TOPOLOGY say, if anything",
        metavar="TYPE",
    )
    metrics_port: int | None = setting(
        None,
        "port of the server's Prometheus metrics; verifier, drafter and further servers take the "
        "next ones, in this order; unset: none",
        metavar="PORT",
        common=True,
    )
    run_dir: Path | None = setting(
        None,
        "folder of the sockets between the processes; unset: a private temporary one",
        metavar="DIR",
    )
    start_timeout_seconds: float = setting(
        3600.0,
        "how long a process may take to get ready, downloads and compiling included, before it is "
        "killed and started again",
        flag="start-timeout",
        metavar="SECONDS",
        above=0,
    )
    hang_timeout_seconds: float = setting(
        10.0,
        "how long a process that was ready may leave looks at its health unanswered before it is "
        "killed and started again",
        flag="hang-timeout",
        metavar="SECONDS",
        above=0,
    )
    verifier: VerifierSettings = group(
        VerifierSettings,
        title="verifier",
        without=(
            "self-test",
            *("listen", "metrics-port", "drafter"),
            *("coordinator", "num-processes", "process-id"),
        ),
    )
    drafter: DrafterSettings = group(
        DrafterSettings, title="drafter", without=("listen", "metrics-port", "find", *PEER_TLS)
    )
    server: ServerSettings = group(
        ServerSettings, title="server", without=("metrics-port", "verifier", *PEER_TLS)
    )

    def __post_init__(self) -> None:
        """Check what can be checked without looking at the machine."""
        check(self)
        if self.no_server and self.verifier.peer_address is None:
            raise ValueError("--no-server needs --peer-listen")
        if self.verifier.peer_tls is not None and self.verifier.peer_address is None:
            raise ValueError("--peer-tls-cert needs --peer-listen")
        if self.no_drafter and self.names_drafter:
            raise ValueError("--drafter and --no-drafter exclude each other")

    @property
    def names_drafter(self) -> bool:
        """Whether a drafter was asked for, beyond whatever fits the target."""
        return self.drafter.drafter != DrafterSettings().drafter
