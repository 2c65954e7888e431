"""Which processes `blockdraft serve` starts, and with which flags; no I/O."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings, TlsSettings
from blockdraft_runtime.tpu_host import COORDINATOR_PORT, TpuHost
from blockdraft_runtime.tpu_split import (
    ChipSplit,
    default_split,
    drafter_environment,
    verifier_environment,
)

if TYPE_CHECKING:
    from blockdraft_server.supervise.child import ChildSpec

# Beyond the time a process lets its calls go on.
_STOP_MARGIN_SECONDS = 10.0
# Longest path that fits into a unix socket's address on Linux and macOS.
_MAX_SOCKET_PATH = 103


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What `blockdraft serve` was told, as the flags of each process.

    Attributes:
        model: Name of the model in requests.
        listen: The public address.
        server_address: Where the server reports its health.
        verifier_address: Where the verifier listens.
        drafter_address: Where the drafter listens; None to decode plainly.
        server_flags: Flags of the server.
        verifier_flags: Flags of the verifier.
        drafter_flags: Flags of the drafter.
        drain_seconds: How long calls in flight may go on.
        host: The TPU host this is; None without TPU.
        verifier_environment: Variables that give the verifier its chips.
        drafter_environment: Variables that give the drafter its chips.
    """

    model: str
    listen: str
    server_address: str
    verifier_address: str
    drafter_address: str | None
    server_flags: tuple[str, ...]
    verifier_flags: tuple[str, ...]
    drafter_flags: tuple[str, ...]
    drain_seconds: float
    host: TpuHost | None = None
    verifier_environment: Mapping[str, str] = field(default_factory=dict)
    drafter_environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_arguments(
        cls, args: argparse.Namespace, folder: Path, environ: Mapping[str, str]
    ) -> "ServePlan":
        """Return the plan for parsed flags, with sockets in `folder`.

        Args:
            args: The parsed flags.
            folder: Where the sockets between the processes go.
            environ: Environment variables, which tell of a TPU.

        Raises:
            ValueError: If a flag is out of range, the folder's path is too long, or the chips
                cannot be split as asked for.
        """
        addresses = {role: _socket(folder, role) for role in ("server", "verifier", "drafter")}
        host = TpuHost.from_environment(environ, args.tpu_host)
        split = _split(args, host)
        decode_plainly = args.no_drafter or (split is not None and split.drafter == 0)
        drafter = None if decode_plainly else addresses["drafter"]
        if (args.tls_cert is None) != (args.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other")
        config = ServerSettings(
            target=args.target,
            verifiers=(addresses["verifier"],),
            model_name=args.model_name,
            tls=TlsSettings(args.tls_cert, args.tls_key) if args.tls_cert is not None else None,
            limits=LimitsSettings(
                max_waiting=args.max_waiting,
                max_prompt_bytes=args.max_prompt_bytes,
                default_timeout_seconds=args.default_timeout,
                recovery_seconds=args.recovery_timeout,
            ),
        )
        base = args.metrics_port
        ports = (None, None, None) if base is None else (base, base + 1, base + 2)
        shared = _flags(
            target=args.target,
            dtype=args.dtype,
            max_sequences=args.max_sequences,
            max_context_tokens=args.max_context_tokens,
            drain_timeout=args.drain_timeout,
            log_level=args.log_level,
        )
        return cls(
            model=config.served_name,
            listen=args.listen,
            server_address=addresses["server"],
            verifier_address=addresses["verifier"],
            drafter_address=drafter,
            server_flags=_flags(
                target=args.target,
                listen=args.listen,
                control=addresses["server"],
                verifier=addresses["verifier"],
                model_name=config.served_name,
                metrics_port=ports[0],
                api_key_file=args.api_key_file,
                tls_cert=args.tls_cert,
                tls_key=args.tls_key,
                max_waiting=args.max_waiting,
                max_prompt_bytes=args.max_prompt_bytes,
                default_timeout=args.default_timeout,
                recovery_timeout=args.recovery_timeout,
                drain_timeout=args.drain_timeout,
                log_level=args.log_level,
            ),
            verifier_flags=(
                *shared,
                *_flags(
                    listen=addresses["verifier"],
                    drafter=drafter or "none",
                    metrics_port=ports[1],
                    max_step_tokens=args.max_step_tokens,
                    num_pages=args.num_pages,
                    weights=args.weights,
                    draft_policy=args.draft_policy,
                ),
                *_slice_flags(host),
            ),
            drafter_flags=(
                *shared,
                *_flags(listen=addresses["drafter"], drafter=args.drafter, metrics_port=ports[2]),
            ),
            drain_seconds=args.drain_timeout,
            host=host,
            verifier_environment=verifier_environment(host, split) if host and split else {},
            drafter_environment=(
                drafter_environment(host, split) if host and split and drafter else {}
            ),
        )

    @property
    def follows(self) -> bool:
        """Whether this host only takes part in the steps of a verifier on another one."""
        return self.host is not None and self.host.worker_id > 0

    def children(self) -> list["ChildSpec"]:
        """Return the processes in the order in which they stop: front door first."""
        from blockdraft_server.supervise.child import ChildSpec

        def child(
            role: str, address: str, flags: tuple[str, ...], environment: Mapping[str, str]
        ) -> ChildSpec:
            # The same as `blockdraft ROLE`, but of this interpreter whatever PATH says.
            command = (sys.executable, "-m", "blockdraft_client", role, *flags)
            stop_seconds = self.drain_seconds + _STOP_MARGIN_SECONDS
            return ChildSpec(role, command, address, stop_seconds, environment)

        verifier = child(
            "verifier", self.verifier_address, self.verifier_flags, self.verifier_environment
        )
        if self.follows:
            return [verifier]
        children = [child("server", self.server_address, self.server_flags, {}), verifier]
        if self.drafter_address is not None:
            children.append(
                child("drafter", self.drafter_address, self.drafter_flags, self.drafter_environment)
            )
        return children


def _split(args: argparse.Namespace, host: TpuHost | None) -> ChipSplit | None:
    """Return which process owns how many chips; None without TPU."""
    if host is None:
        if args.tpu_split is not None:
            raise ValueError("--tpu-split needs a TPU: name it with --tpu-host, such as v5p-8")
        return None
    if args.tpu_split is None:
        return default_split(host, drafting=not args.no_drafter)
    split = ChipSplit.parse(args.tpu_split)
    if args.no_drafter and split.drafter:
        raise ValueError(f"--no-drafter and --tpu-split {split} exclude each other")
    if args.drafter is not None and not split.drafter:
        raise ValueError(f"--tpu-split {split} leaves no chips for --drafter {args.drafter}")
    return split


def _slice_flags(host: TpuHost | None) -> tuple[str, ...]:
    """Return the verifier's flags on a slice of several hosts."""
    if host is None or host.num_hosts == 1:
        return ()
    return _flags(
        coordinator=f"{host.hostnames[0]}:{COORDINATOR_PORT}",
        num_processes=host.num_hosts,
        process_id=host.worker_id,
    )


def _flags(**values: object) -> tuple[str, ...]:
    """Return `--name value` for every value that is set."""
    return tuple(
        part
        for name, value in values.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    )


def _socket(folder: Path, role: str) -> str:
    path = str(folder.resolve() / f"{role}.sock")
    if len(path.encode()) > _MAX_SOCKET_PATH:
        raise ValueError(f"the path of the run folder is too long for a socket: {path}")
    return f"unix:{path}"
