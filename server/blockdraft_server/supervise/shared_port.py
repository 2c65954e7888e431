"""The port that several servers share, which must be nobody else's.

The kernel spreads connections over all processes of a user that share a port, so a second service
on it would silently get half of the first one's callers.
"""

import errno
import socket


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
