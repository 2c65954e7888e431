"""Where the verifiers are: at addresses as written, and at those that names stand for just now."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from blockdraft_runtime.credentials import UnusableFilesError
from blockdraft_runtime.settings.server import PeerName

logger = logging.getLogger(__name__)

# How long what a name stands for is believed; it is looked up sooner where a verifier went away.
LOOK_UP_SECONDS = 5.0
# However many go away at once.
_LEAST_SECONDS = 0.5

LookUp = Callable[[PeerName], Awaitable[frozenset[str]]]
"""Returns the addresses, `host:port`, that a name stands for; raises `OSError` if it cannot."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a verifier is."""

    address: str  # what to connect to
    host: str = ""  # whom its certificate has to be for; empty for the host of the address


async def look_up(name: PeerName) -> frozenset[str]:
    """Ask the system's resolver; a `LookUp`.

    The addresses are of one family, the one the system prefers: a host with addresses of both would
    be taken for two verifiers.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        # A label that is too long or empty gets no further than this.
        raise OSError(f"no host is called {name.host!r}: {error}") from error
    preferred = found[0][0]
    hosts = {str(place[0]) for family, _, _, _, place in found if family == preferred}
    v6 = preferred == socket.AF_INET6
    return frozenset(f"[{host}]:{name.port}" if v6 else f"{host}:{name.port}" for host in hosts)


class Places:
    """What is known of where verifiers are; what a name stood for stays until it is known anew."""

    def __init__(
        self,
        written: Sequence[str],
        on_failure: Callable[[], None] = lambda: None,
        look_up: LookUp = look_up,
    ) -> None:
        """Take the addresses as written; names are looked up by `keep_current`.

        `on_failure` is called whenever one could not be. `ValueError` if one is written wrongly.
        """
        names = {address: PeerName.parse(address) for address in written}
        self._written = frozenset(Place(each) for each, name in names.items() if name is None)
        self._found: dict[PeerName, frozenset[Place]] = {
            name: frozenset() for name in names.values() if name is not None
        }
        self._on_failure = on_failure
        self._look_up = look_up
        self._failing: set[PeerName] = set()
        self._asked = {name: asyncio.Event() for name in self._found}

    @property
    def known(self) -> frozenset[Place]:
        """Where verifiers are."""
        return self._written.union(*self._found.values())

    def look_now(self) -> None:
        """Look all names up again soon: a verifier went away."""
        for asked in self._asked.values():
            asked.set()

    async def keep_current(self, on_looked: Callable[[], None]) -> None:
        """Look names up until cancelled; returns at once if there are none.

        `on_looked` is called after each look; an `OSError` or `UnusableFilesError` that it raises
        is a failure of the look.
        """
        await asyncio.gather(*(self._follow(name, on_looked) for name in self._found))

    async def _follow(self, name: PeerName, on_looked: Callable[[], None]) -> None:
        while True:
            self._asked[name].clear()
            await self._refresh(name, on_looked)
            await asyncio.sleep(_LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_SECONDS - _LEAST_SECONDS):
                    await self._asked[name].wait()

    async def _refresh(self, name: PeerName, on_looked: Callable[[], None]) -> None:
        try:
            addresses = await self._look_up(name)
            self._found[name] = frozenset(Place(each, name.certified) for each in addresses)
            on_looked()
        except (OSError, UnusableFilesError) as error:
            self._on_failure()
            # Once, not every few seconds.
            if name not in self._failing:
                logger.warning("cannot look up %s: %s; it stays what it was", name, error)
            self._failing.add(name)
            return
        if name in self._failing:
            logger.info("%s can be looked up again", name)
        self._failing.discard(name)
