"""What the server is told at start."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LimitsSettings:
    """Bounds that protect the server from its callers.

    Attributes:
        max_waiting: Requests that may wait beyond what the verifiers decode at once.
        max_prompt_bytes: Most UTF-8 bytes of a prompt, all messages together; checked before
            tokenizing, whose time grows with it.
        default_timeout_seconds: Deadline of calls that come without one.
        recovery_seconds: How long a broken stream may wait for a verifier to come back.
        max_replays: How often in a row a request is sent again without gaining a token.
    """

    max_waiting: int = 256
    max_prompt_bytes: int = 4 * 1024 * 1024
    default_timeout_seconds: float = 600.0
    recovery_seconds: float = 120.0
    max_replays: int = 8

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be >= 0, got {self.max_waiting}")
        if self.max_prompt_bytes < 1:
            raise ValueError(f"max_prompt_bytes must be >= 1, got {self.max_prompt_bytes}")
        if not self.default_timeout_seconds > 0:
            raise ValueError(
                f"default_timeout_seconds must be > 0, got {self.default_timeout_seconds}"
            )
        if self.recovery_seconds < 0:
            raise ValueError(f"recovery_seconds must be >= 0, got {self.recovery_seconds}")
        if self.max_replays < 0:
            raise ValueError(f"max_replays must be >= 0, got {self.max_replays}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Where the server's certificate lies.

    Attributes:
        certificate: PEM file with the certificate chain, the server's own first.
        key: PEM file with the private key.
    """

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything the server is told at start, apart from where it listens.

    Attributes:
        target: The target model, for its tokenizer: a known name, a directory, a GGUF file or a
            hub id. Must be what the verifiers serve.
        verifiers: gRPC addresses of the verifiers, one or more.
        model_name: Name clients may use in requests; None derives it from `target`.
        api_keys: Bearer tokens that are let in; empty lets everyone in.
        tls: The certificate; None serves plaintext.
        limits: Bounds that protect the server.
        poll_seconds: Time between two looks at a verifier's health and load.
    """

    target: str = "smollm2-135m"
    verifiers: tuple[str, ...] = ("unix:/tmp/blockdraft-verifier.sock",)
    model_name: str | None = None
    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    tls: TlsSettings | None = None
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    poll_seconds: float = 0.5

    def __post_init__(self) -> None:
        """Check what can be checked without looking at files or the network."""
        if not self.target:
            raise ValueError("target must not be empty")
        if not self.verifiers or not all(self.verifiers):
            raise ValueError("verifiers must hold at least one address, none empty")
        if len(set(self.verifiers)) != len(self.verifiers):
            raise ValueError(f"verifiers must differ, got {', '.join(self.verifiers)}")
        if self.model_name == "":
            raise ValueError("model_name must not be empty")
        if any(not key or key != key.strip() for key in self.api_keys):
            raise ValueError("api_keys must be neither empty nor padded with spaces")
        if not self.poll_seconds > 0:
            raise ValueError(f"poll_seconds must be > 0, got {self.poll_seconds}")

    @property
    def served_name(self) -> str:
        """Name of the model in requests and answers."""
        if self.model_name is not None:
            return self.model_name
        path = Path(self.target).expanduser()
        if path.suffix == ".gguf":
            return path.stem
        return path.resolve().name if path.is_dir() else self.target
