"""A check that no process listens at a unix socket, whose file gRPC would simply replace."""

import socket


def refuse_taken_socket(address: str) -> None:
    """Raise `OSError` if a process accepts connections at an address `unix:/path`.

    Addresses of other kinds pass.
    """
    kind, _, name = address.partition(":")
    if kind not in ("unix", "unix-abstract"):
        return
    path = name.removeprefix("//") if kind == "unix" else f"\0{name}"
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise OSError(
                f"cannot listen at {address}: another process listens there; "
                "stop it, or choose another path"
            )
