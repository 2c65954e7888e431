"""The settings that all serving processes share."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockdraft_runtime.configuration.definition import check, required, setting

DEFAULT_TARGET = "smollm2-135m"
TARGET_HELP = "target model: a known name, a directory, a `.gguf` file or a hub id"
METRICS_ADDRESS_HELP = (
    "where metrics are served, without encryption or authentication; `0.0.0.0`: on every interface"
)
SEQUENCES_HELP = "maximum sequences at once; a drafter leaves those beyond to plain decoding"
MODEL_LEN_HELP = (
    "maximum tokens of one sequence, prompt and completion together; unset: the model's own limit, "
    "as far as the KV cache holds it"
)
WAITING_HELP = (
    "requests that may wait beyond those decoded at once; more get QUEUE_FULL; as many replays may "
    "wait in addition"
)
DTYPE_HELP = (
    "element type of weights and KV caches; `auto` is bfloat16 on TPU, on CPU too if there is a "
    "C++ compiler, and float32 elsewhere"
)

Dtype = Literal["auto", "float32", "bfloat16"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B?", re.I)
_SIZE_UNITS = "KMGT"


class Size(int):
    """A number of bytes, written as people do: `4GiB`."""

    def __str__(self) -> str:
        """Return the size in the largest unit of which it is a multiple."""
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if self and self % (1 << power) == 0:
                return f"{self >> power}{unit}"
        return int.__repr__(self)


def parse_size(text: str) -> Size:
    """Return the bytes of a size such as `4GiB`, `500MB` or a plain number."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > 20:
        raise ValueError(f"must be a size such as 512MiB or 4GiB, got {text!r}")
    unit = (match[2] or "").upper()
    power = _SIZE_UNITS.index(unit[0]) + 1 if unit else 0
    return Size(float(match[1]) * (1024 if unit.endswith("I") else 1000) ** power)


def size_text(size_bytes: float) -> str:
    """Return bytes in words: `1.5 GiB`, `320 MiB`."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.0f} MiB"


def model_name(target: str) -> str:
    """Return the name of a target: that of its file or directory, or the hub id itself."""
    path = Path(target).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else target


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Addresses, logs and shutdown of a process."""

    address: str = required(
        "where to listen, `host:port` or `unix:/path`", flag="listen", common=True
    )
    metrics_port: int | None = setting(None, "port of the Prometheus metrics", common=True)
    metrics_address: str = setting("127.0.0.1", METRICS_ADDRESS_HELP)
    drain_seconds: float = setting(
        30.0, "how long calls in flight may go on after SIGTERM", flag="drain-timeout", minimum=0
    )
    control_address: str | None = setting(
        None,
        "second, always plaintext address, for the health checks of a supervisor: best a unix "
        "socket in a private folder",
        flag="control",
    )
    log_level: LogLevel = setting("info", "least severe messages to log", common=True)
    log_format: LogFormat = setting("text", "one line of text for each event, or one JSON object")

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """Certificates between server, verifier and drafter; read again when they change."""

    certificate: Path = required(
        "PEM certificate chain that this process shows to the service's others; needs "
        "--peer-tls-key and --peer-tls-ca; unix sockets stay plaintext",
        flag="peer-tls-cert",
    )
    key: Path = required("PEM private key of --peer-tls-cert", flag="peer-tls-key")
    authorities: Path = required(
        "PEM certificates of the authorities of the other processes",
        flag="peer-tls-ca",
    )
