"""A name that stands for several processes, such as that of a headless service in Kubernetes."""

from dataclasses import dataclass

_SCHEME = "dns:"
_PREFIX = "dns:///"


@dataclass(frozen=True, slots=True)
class PeerName:
    """A host's name with one address for each process, and the port they all listen at."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> "PeerName | None":
        """Return the name in an address `dns:///HOST:PORT`; None if it is an address of one.

        Raises:
            ValueError: If it begins like one, but is none.
        """
        if not address.startswith(_SCHEME):
            return None
        host, _, port = address.removeprefix(_PREFIX).rpartition(":")
        known = address.startswith(_PREFIX) and host and not set("/:[]") & set(host)
        if not known or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"a name of several is written {_PREFIX}HOST:PORT, got {address!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        """Write it as an address."""
        return f"{_PREFIX}{self.host}:{self.port}"

    @property
    def certified(self) -> str:
        """Whom the certificates of its processes have to be for."""
        # The dot at the end of a full name keeps the resolver from trying others.
        return self.host.removesuffix(".")
