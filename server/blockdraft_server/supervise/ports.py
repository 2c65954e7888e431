"""The ports of this host that the processes of `blockdraft serve` are to listen at."""

import contextlib
import errno
import socket
from collections.abc import Iterator

from blockdraft_runtime.sockets import refuse_taken_socket
from blockdraft_server.supervise.plan import ServePlan


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this host for a process that asks for it by number, also again and again.

    A process that listens at it must allow the reuse of addresses, as servers do. No other process
    gets it: the kernel does not hand out a bound port, and a port that is bound without listening
    can be shared in this way.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def refuse_taken_ports(plan: ServePlan) -> None:
    """Raise `OSError` if an address that a process is to listen at cannot be bound now."""
    processes = [
        settings.process for settings in (plan.server, plan.verifier, plan.drafter) if settings
    ]
    metrics = [(process.metrics_address, process.metrics_port) for process in processes]
    if plan.learns:
        metrics.append((plan.verifier.process.metrics_address, plan.trainer_metrics_port))
    for process in processes:
        refuse_taken_port("--listen", process.address)
    for host, port in metrics:
        if port is not None:
            refuse_taken_port("--metrics-port", f"{host}:{port}")


def refuse_taken_port(flag: str, address: str) -> None:
    """Raise `OSError` if `host:port` cannot be bound, `ValueError` if it is no such address.

    The kernel spreads connections over all processes of a user that share a port, so a second
    service on that of several servers would silently get half of their callers.
    """
    if address.startswith("unix"):
        refuse_taken_socket(address)
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(
            f"{flag} must be host:port, such as 127.0.0.1:8000, or unix:/path, got {address!r}"
        )
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OverflowError as error:
        raise OSError(f"cannot listen at {flag} {address}: no such port") from error
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = "another process listens there; stop it, or choose another port"
        raise OSError(f"cannot listen at {flag} {address}: {reason}") from error
