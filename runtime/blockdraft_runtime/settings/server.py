"""The settings of the server."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_runtime.configuration.definition import (
    check,
    group,
    optional_group,
    required,
    setting,
)
from blockdraft_runtime.settings.process import (
    DEFAULT_TARGET,
    TARGET_HELP,
    WAITING_HELP,
    PeerTlsSettings,
    ProcessSettings,
    model_name,
)

_SCHEME = "dns:"
_PREFIX = "dns:///"


@dataclass(frozen=True, slots=True)
class PeerName:
    """A name that stands for several processes, such as a headless service in Kubernetes."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> "PeerName | None":
        """Return the name in an address `dns:///HOST:PORT`; None for one process's address.

        `ValueError` if it begins with `dns:` but is no such address.
        """
        if not address.startswith(_SCHEME):
            return None
        host, _, port = address.removeprefix(_PREFIX).rpartition(":")
        has_host = address.startswith(_PREFIX) and host and not set("/:[]") & set(host)
        if not has_host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"a name of several is written {_PREFIX}HOST:PORT, got {address!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        """Write it as an address."""
        return f"{_PREFIX}{self.host}:{self.port}"

    @property
    def certified(self) -> str:
        """The host name that the certificates of its processes have to be for."""
        # The dot at the end of a full name keeps the resolver from trying others.
        return self.host.removesuffix(".")


@dataclass(frozen=True, slots=True)
class LimitsSettings:
    """Bounds that protect the server from its callers."""

    max_waiting: int = setting(256, WAITING_HELP, minimum=0)
    # Checked before tokenizing, whose time grows with it.
    max_prompt_bytes: int = setting(
        1024 * 1024,
        "longest prompt, in bytes of UTF-8, all messages together, or of encoded token ids",
        minimum=1,
    )
    default_timeout_seconds: float = setting(
        600.0, "deadline of calls that come without one", flag="default-timeout", above=0
    )
    recovery_seconds: float = setting(
        120.0,
        "how long a broken stream waits for a verifier to come back",
        flag="recovery-timeout",
        minimum=0,
    )
    max_connection_age_seconds: float | None = setting(
        None,
        "how long a caller may use one connection before it is asked to open another, so that "
        "callers reach new servers; calls under way go on; unset: for ever",
        flag="max-connection-age",
        above=0,
    )
    max_replays: int = 8  # how often in a row a request is sent again without gaining a token

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.max_replays < 0:
            raise ValueError(f"max_replays must be at least 0, got {self.max_replays}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files of the server's certificate; they are read again when they change."""

    certificate: Path = required(
        "PEM certificate chain, the server's own first; needs --tls-key",
        flag="tls-cert",
        common=True,
    )
    key: Path = required("PEM private key; needs --tls-cert", flag="tls-key", common=True)
    client_authorities: Path | None = setting(
        None,
        "PEM certificates of authorities for the client certificate that every caller then has to "
        "show; needs --tls-cert",
        flag="tls-client-ca",
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All settings of the server."""

    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", common=True)
    verifiers: tuple[str, ...] = setting(
        ("unix:/tmp/blockdraft-verifier.sock",),
        "address of a verifier, or a name of several, such as `dns:///verifiers:50052`, that is "
        "resolved again every few seconds; repeatable",
        flag="verifier",
    )
    model_name: str | None = setting(
        None, "name of the model in requests; unset: the target's", common=True
    )
    openai: str | None = setting(
        None,
        "also serve OpenAI's HTTP API at this address, such as `127.0.0.1:8000`",
        metavar="HOST:PORT",
        common=True,
    )
    playground: bool = setting(
        True, "show drafting at work, and a chat, to browsers at `/` of --openai"
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "name under which callers without keys, web pages too, may reach --openai, beside "
        "localhost, the host that it names and addresses; `*` for any; repeatable",
        flag="allowed-host",
    )
    api_key_file: Path | None = setting(
        None,
        "let in only the keys of this file, one per line, alone or as `blockdraft keys new` writes "
        "them; read again when it changes",
        common=True,
    )
    trace_endpoint: str | None = setting(
        None,
        "collector that gets a trace of each request by OTLP over gRPC, such as "
        "`http://localhost:4317`; needs blockdraft[trace]",
    )
    production: bool = setting(
        False,
        "refuse to start without --api-key-file and TLS, and switch reflection off",
        common=True,
    )
    tls_elsewhere: bool = setting(
        False,
        "let --production start without --tls-cert, because TLS ends at a load balancer or in a "
        "mesh",
    )
    servers: int = setting(
        1,
        "server processes behind one port; each admits its share of the requests. `serve` starts "
        "them; `server` is one of so many, started by you",
        minimum=1,
    )
    tls: TlsSettings | None = optional_group()  # the certificate; None serves plaintext
    # Certificates between server and verifiers; None for plaintext.
    peer_tls: PeerTlsSettings | None = optional_group()
    limits: LimitsSettings = group(LimitsSettings)
    process: ProcessSettings = group(lambda: ProcessSettings("127.0.0.1:50051"))
    poll_seconds: float = 0.5  # time between two polls of a verifier's health and load

    def __post_init__(self) -> None:
        """Check what can be checked without looking at files or the network."""
        if not self.target:
            raise ValueError("--target must not be empty")
        if not self.verifiers or not all(self.verifiers):
            raise ValueError("--verifier must be at least one address, none empty")
        if len(set(self.verifiers)) != len(self.verifiers):
            raise ValueError(f"--verifier must not repeat one, got {', '.join(self.verifiers)}")
        for address in self.verifiers:
            PeerName.parse(address)
        if self.openai is not None:
            self._check_openai(self.openai)
        if self.servers > 1:
            self._check_shared_port()
        if self.tls_elsewhere and self.tls is not None:
            raise ValueError("--tls-elsewhere and --tls-cert exclude each other")
        if self.production:
            self._check_production()
        if self.model_name == "":
            raise ValueError("--model-name must not be empty")
        if not self.poll_seconds > 0:
            raise ValueError(f"poll_seconds must be > 0, got {self.poll_seconds}")

    def _check_openai(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or host.startswith("unix") or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"--openai must be host:port, such as 127.0.0.1:8000, got {address}")
        if address == self.process.address:
            raise ValueError("--openai and --listen must not be the same address")
        if self.servers > 1 and int(port) == 0:
            raise ValueError(f"--servers {self.servers} needs a port in --openai, got {address}")

    def _check_shared_port(self) -> None:
        address = self.process.address
        if address.startswith(("unix:", "unix-abstract:")):
            raise ValueError(f"--servers {self.servers} needs --listen host:port, got {address}")
        if address.endswith(":0"):
            raise ValueError(f"--servers {self.servers} needs a port in --listen, got {address}")

    def _check_production(self) -> None:
        if self.api_key_file is None:
            raise ValueError("--production needs --api-key-file")
        if self.tls is None and not self.tls_elsewhere:
            raise ValueError(
                "--production needs --tls-cert and --tls-key, or --tls-elsewhere where TLS ends "
                "before the server"
            )
        control = self.process.control_address
        if control is not None and not control.startswith(("unix:", "unix-abstract:")):
            raise ValueError(
                f"--production needs a unix socket for --control, which has no TLS, got {control}"
            )

    @property
    def served_name(self) -> str:
        """Name of the model in requests and responses."""
        return model_name(self.target) if self.model_name is None else self.model_name
