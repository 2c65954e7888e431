"""Places of the verifiers: addresses as written, and those to which names resolve."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from blockdraft_runtime.credentials import UnusableFilesError
from blockdraft_runtime.settings.server import PeerName

logger = logging.getLogger(__name__)

# How long the addresses of a name are kept; it is resolved sooner if a verifier went away.
LOOK_UP_SECONDS = 5.0
# Shortest pause, however many verifiers go away at once.
_LEAST_SECONDS = 0.5

Resolve = Callable[[PeerName], Awaitable[frozenset[str]]]
"""Returns the addresses, `host:port`, of a name; raises `OSError` if it cannot be resolved."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The place of a verifier."""

    address: str  # the address to connect to
    host: str = ""  # the host of its certificate; empty for the host of the address


async def resolve(name: PeerName) -> frozenset[str]:
    """Ask the system's resolver; a `Resolve`.

    The addresses are of one family, the one the system prefers: a host with addresses of both would
    be taken for two verifiers.
    """
    loop = asyncio.get_running_loop()
    try:
        candidates = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        # A label that is too long or empty fails here.
        raise OSError(f"no host is called {name.host!r}: {error}") from error
    preferred = candidates[0][0]
    hosts = {str(place[0]) for family, _, _, _, place in candidates if family == preferred}
    v6 = preferred == socket.AF_INET6
    return frozenset(f"[{host}]:{name.port}" if v6 else f"{host}:{name.port}" for host in hosts)


class Places:
    """The known places of verifiers; the addresses of a name stay until it is resolved again."""

    def __init__(
        self,
        addresses: Sequence[str],
        on_failure: Callable[[], None] = lambda: None,
        resolve: Resolve = resolve,
    ) -> None:
        """Take addresses and names; `keep_current` resolves the names.

        `on_failure` is called whenever that fails. `ValueError` if an address is malformed.
        """
        names = {address: PeerName.parse(address) for address in addresses}
        self._fixed_places = frozenset(
            Place(address) for address, name in names.items() if name is None
        )
        self._resolved_places: dict[PeerName, frozenset[Place]] = {
            name: frozenset() for name in names.values() if name is not None
        }
        self._on_failure = on_failure
        self._resolve = resolve
        self._failing: set[PeerName] = set()
        self._requested = {name: asyncio.Event() for name in self._resolved_places}

    @property
    def known_places(self) -> frozenset[Place]:
        """The current places of verifiers."""
        return self._fixed_places.union(*self._resolved_places.values())

    def resolve_now(self) -> None:
        """Resolve all names again soon: a verifier went away."""
        for event in self._requested.values():
            event.set()

    async def keep_current(self, on_resolved: Callable[[], None]) -> None:
        """Resolve names until cancelled; returns at once if there are none.

        `on_resolved` is called each time; an `OSError` or `UnusableFilesError` that it raises
        counts as a failure to resolve.
        """
        await asyncio.gather(*(self._follow(name, on_resolved) for name in self._resolved_places))

    async def _follow(self, name: PeerName, on_resolved: Callable[[], None]) -> None:
        while True:
            self._requested[name].clear()
            await self._refresh(name, on_resolved)
            await asyncio.sleep(_LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_SECONDS - _LEAST_SECONDS):
                    await self._requested[name].wait()

    async def _refresh(self, name: PeerName, on_resolved: Callable[[], None]) -> None:
        try:
            addresses = await self._resolve(name)
            places = frozenset(Place(address, name.certified) for address in addresses)
            self._resolved_places[name] = places
            on_resolved()
        except (OSError, UnusableFilesError) as error:
            self._on_failure()
            # Logged once, not every few seconds.
            if name not in self._failing:
                logger.warning("cannot resolve %s: %s; its addresses stay", name, error)
            self._failing.add(name)
            return
        if name in self._failing:
            logger.info("%s can be resolved again", name)
        self._failing.discard(name)
