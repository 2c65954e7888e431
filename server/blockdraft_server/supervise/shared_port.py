"""Ports that are nobody else's: the one that several servers share, and one that is free.

The kernel spreads connections over all processes of a user that share a port, so a second service
on it would silently get half of the first one's callers.
"""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this host for a process that asks for it by number, also again and again.

    Who listens at it must allow the reuse of addresses, as servers do. Nobody else gets it: the
    kernel gives no port away that is bound, and what is bound without listening can be shared so.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def refuse_taken_port(address: str) -> None:
    """Raise unless nobody listens at `address`.

    Args:
        address: `host:port`, as servers listen at.

    Raises:
        ValueError: If somebody does.
    """
    host, _, port = address.rpartition(":")
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=flags)
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise ValueError(f"somebody listens at --listen {address} already") from error
                # Whatever else it is, the servers will say.
