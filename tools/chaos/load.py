"""Callers: so many at a time, each with the next request when it has its answer."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tools.chaos.wanted import Wanted

from blockdraft_client import (
    ApiError,
    AsyncClient,
    BlockdraftError,
    Completion,
    SpeculationParams,
)
from blockdraft_client.params import GenerationOptions

PLAIN = SpeculationParams(disabled=True)
EXCLUDED = SpeculationParams(learning_disabled=True)
# Beyond its deadline a call ends by itself; whoever waits longer has lost it.
GRACE_SECONDS = 30.0
READY_SECONDS = 120.0
CONNECTIONS = 4


@dataclass
class Heard:
    """What a caller heard."""

    began: float  # when the request was sent, by the monotonic clock; `ended` likewise
    ended: float = 0.0
    times: list[float] = field(default_factory=list)  # when each message with tokens came
    token_ids: list[int] = field(default_factory=list)  # all tokens that came
    text: str = ""  # all text that came
    finish: str | None = None  # why the answer ended; None if it did not
    error: str | None = None  # name of the exception that ended it
    reason: str = ""  # its reason, or its message if it has none
    left: bool = False  # whether the caller left


async def ask(client: AsyncClient, wanted: Wanted) -> Heard:
    """Ask for one answer, and return what was heard of it, however it ended."""
    heard = Heard(began=time.monotonic())
    try:
        async with asyncio.timeout(wanted.deadline_seconds + GRACE_SECONDS):
            await (_whole if wanted.whole else _streamed)(client, wanted, heard)
    except BlockdraftError as error:
        heard.error = type(error).__name__
        heard.reason = error.reason if isinstance(error, ApiError) else error.message
    except TimeoutError:
        heard.error = "nothing came"
    heard.ended = time.monotonic()
    return heard


def _options(wanted: Wanted) -> GenerationOptions:
    return {
        "sampling": wanted.sampling,
        "speculation": EXCLUDED if wanted.excluded else None,
        "priority": wanted.priority,
        "timeout": wanted.deadline_seconds,
    }


async def _whole(client: AsyncClient, wanted: Wanted, heard: Heard) -> None:
    answer = await client.generate(wanted.prompt, **_options(wanted))
    heard.token_ids, heard.text = list(answer.token_ids), answer.text
    heard.finish = str(answer.finish_reason)


async def _streamed(client: AsyncClient, wanted: Wanted, heard: Heard) -> None:
    async with client.stream(wanted.prompt, **_options(wanted)) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                heard.times.append(time.monotonic())
            heard.token_ids.extend(chunk.token_ids)
            heard.text += chunk.text
            if wanted.leaves_after is not None and len(heard.token_ids) >= wanted.leaves_after:
                heard.left = True
                return
    heard.finish = str(stream.finish_reason)


async def true_answers(
    client: AsyncClient, wanted: Sequence[Wanted], at_once: int
) -> list[Completion]:
    """Return each request's answer, decoded plainly and undisturbed."""
    limit = asyncio.Semaphore(at_once)

    async def answer(request: Wanted) -> Completion:
        async with limit:
            return await client.generate(
                request.prompt, sampling=request.sampling, speculation=PLAIN
            )

    return list(await asyncio.gather(*map(answer, wanted)))


class Callers:
    """Callers that ask for all requests, each for one at a time.

    Attributes:
        begun: How many requests have begun.
        heard: What was heard of each, in the order of the requests; None while it is under way.
    """

    def __init__(self, wanted: Sequence[Wanted], connect: Callable[[], AsyncClient]) -> None:
        """Ask for nothing yet."""
        self.begun = 0
        self.heard: list[Heard | None] = [None] * len(wanted)
        self._wanted = wanted
        self._connect = connect
        self._changed = asyncio.Event()

    async def run(self, at_once: int) -> list[Heard]:
        """Ask for everything, with `at_once` callers on a few connections."""
        clients = [self._connect() for _ in range(CONNECTIONS)]
        try:
            await asyncio.gather(*(self._call(clients[i % CONNECTIONS]) for i in range(at_once)))
        finally:
            for client in clients:
                await client.close()
        return [heard for heard in self.heard if heard is not None]

    async def until(self, begun: int) -> None:
        """Wait until so many requests have begun."""
        while self.begun < begun:
            self._changed.clear()
            await self._changed.wait()

    async def _call(self, client: AsyncClient) -> None:
        while (number := self.begun) < len(self._wanted):
            self.begun += 1
            self._changed.set()
            heard = await ask(client, self._wanted[number])
            self.heard[number] = heard
            if heard.error not in (None, "DeadlineExceededError"):
                # As a caller does: no requests where nobody listens.
                await client.wait_ready(READY_SECONDS)
