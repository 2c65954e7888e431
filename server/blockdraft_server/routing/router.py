"""One unbroken token stream out of as many verifier calls as it takes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable

import grpc

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import verifier_unavailable
from blockdraft_server.routing.decode_stream import BrokenOffError
from blockdraft_server.routing.link import VerifierLink
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.routing.replay import Replay

logger = logging.getLogger(__name__)


class TokenRouter:
    """Sends requests to verifiers and takes broken streams up again."""

    def __init__(
        self,
        pool: VerifierPool,
        recovery_seconds: float,
        on_replay: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Route over `pool`.

        Args:
            pool: The verifiers.
            recovery_seconds: How long a broken stream may wait for a verifier.
            on_replay: Called whenever a request is sent again.
            clock: Returns the time in seconds.
        """
        self._pool = pool
        self._recovery_seconds = recovery_seconds
        self._on_replay = on_replay
        self._clock = clock

    async def stream(
        self, replay: Replay, deadline: float
    ) -> AsyncGenerator[verifier_pb2.SequenceTokens, None]:
        """Yield the messages of the request that `replay` holds, until its end.

        The generator must be closed (`contextlib.aclosing`): that cancels the sequence.

        Args:
            replay: The request; keeps what has arrived.
            deadline: Time by the clock at which the request has failed.

        Raises:
            ServiceError: The verifier's own refusal, UNAVAILABLE when no verifier takes the
                request up again, DEADLINE_EXCEEDED at the deadline.
        """
        link = self._pool.choose()
        if link is None:
            raise verifier_unavailable("no verifier is ready")
        if link.description is not None:
            replay.computation = link.description.computation_fingerprint
        while True:
            try:
                async with contextlib.aclosing(self._call(link, replay, deadline)) as messages:
                    async for message in messages:
                        yield message
                return
            except BrokenOffError as error:
                cause = str(error)
            finish = replay.finished
            if finish is not None:
                # All tokens had arrived: only the word that they were all is missing.
                yield verifier_pb2.SequenceTokens(finish_reason=finish)
                return
            link = await self._next_link(link, replay, deadline, cause)

    async def _call(
        self, link: VerifierLink, replay: Replay, deadline: float
    ) -> AsyncGenerator[verifier_pb2.SequenceTokens, None]:
        now = self._clock()
        with link.decode(replay.begin(now)) as feed:
            timer = asyncio.get_running_loop().call_later(
                max(deadline - now, 0.0), feed.fail, deadline_exceeded()
            )
            try:
                ended = False
                while not ended:
                    message = await feed.take()
                    replay.received(message, self._clock())
                    yield message
                    ended = bool(message.finish_reason)
            finally:
                timer.cancel()

    async def _next_link(
        self, broken: VerifierLink, replay: Replay, deadline: float, cause: str
    ) -> VerifierLink:
        pause = replay.broken()
        emitted = len(replay.emitted_token_ids)
        if pause is None:
            raise verifier_unavailable(
                f"the verifier broke off after {emitted} tokens and again at each replay",
                emitted_tokens=emitted,
                replays=replay.replays,
            )
        logger.warning(
            "replaying a request after %d tokens; verifier %s: %s", emitted, broken.address, cause
        )
        patience = min(self._clock() + self._recovery_seconds, deadline)
        try:
            async with asyncio.timeout(max(patience - self._clock(), 0.0)):
                await asyncio.sleep(pause)
                link = self._pool.choose(replay.computation, avoid=(broken,))
                link = link or await self._pool.wait(replay.computation)
        except TimeoutError:
            if patience == deadline:
                raise deadline_exceeded() from None
            raise verifier_unavailable(
                f"the verifier broke off after {emitted} tokens and none came back within "
                f"{self._recovery_seconds:g} s",
                emitted_tokens=emitted,
                recovery_seconds=self._recovery_seconds,
            ) from None
        self._on_replay()
        return link


def deadline_exceeded() -> ServiceError:
    """Return the error for a request that took longer than it may."""
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
        "the answer was not complete at the deadline",
    )
