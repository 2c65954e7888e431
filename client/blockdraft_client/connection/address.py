"""Which addresses stay on this machine."""

import ipaddress
import re


def is_local(target: str) -> bool:
    """Return whether calls to `target` cannot leave this machine.

    Unix sockets and loopback addresses qualify; whatever is not understood does not.

    Args:
        target: A gRPC target such as `localhost:50051`, `unix:/path` or `ipv4:127.0.0.1:50051`.
    """
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    if target.startswith("dns:"):
        target = target.removeprefix("dns:").rpartition("/")[2]
    addresses = re.sub(r"^ipv[46]:", "", target).split(",")
    return all(_is_loopback(_host(address)) for address in addresses)


def _host(address: str) -> str:
    bracketed = re.fullmatch(r"\[(.*)\](:\d+)?", address)
    if bracketed:
        return bracketed[1]
    # More than one colon is an IPv6 address without a port.
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
