"""One unbroken token stream out of as many verifier calls as it takes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable

import grpc

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.access.admission import verifier_unavailable
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
        link = await self._first_link(deadline)
        refused: set[VerifierLink] = set()
        with contextlib.ExitStack() as trial:
            while True:
                try:
                    async with contextlib.aclosing(self._call(link, replay, deadline)) as messages:
                        async for message in messages:
                            if not replay.suspected:
                                trial.close()
                            yield message
                    return
                except BrokenOffError as error:
                    broken = error
                except ServiceError as error:
                    if error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    refused.add(link)
                    trial.close()
                    link = await self._elsewhere(link, refused, replay, deadline, error, trial)
                    continue
                refused.clear()
                trial.close()
                finish = replay.finished
                if finish is not None:
                    # All tokens had arrived: only the word that they were all is missing.
                    yield verifier_pb2.SequenceTokens(finish_reason=finish)
                    return
                link = await self._next_link(link, replay, deadline, broken, trial)

    async def _first_link(self, deadline: float) -> VerifierLink:
        link = self._pool.choose()
        if link is None and not self._pool.serves():
            raise verifier_unavailable("no verifier is ready")
        try:
            async with asyncio.timeout(max(deadline - self._clock(), 0.0)) as limit:
                return link or await self._pool.wait(None, self._recovery_seconds)
        except TimeoutError:
            if limit.expired():
                raise deadline_exceeded() from None
            raise verifier_unavailable("no verifier is ready") from None

    async def _call(
        self, link: VerifierLink, replay: Replay, deadline: float
    ) -> AsyncGenerator[verifier_pb2.SequenceTokens, None]:
        now = self._clock()
        assert link.description is not None
        request = replay.begin(now, link.description.computation_fingerprint)
        with link.decode(request) as feed:
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

    async def _elsewhere(
        self,
        last: VerifierLink,
        refused: set[VerifierLink],
        replay: Replay,
        deadline: float,
        refusal: ServiceError,
        trial: contextlib.ExitStack,
    ) -> VerifierLink:
        """Return where to ask next, after verifiers had no place for a request.

        A new request asks each verifier once. A replay has been promised an answer: it asks again
        until its deadline, as it would wait in a queue.
        """
        if not replay.suspected:
            link = self._pool.choose(replay.computation, avoid=refused)
            if link is not None and link not in refused:
                return link
            if replay.replays == 0:
                raise refusal
        refused.clear()
        return await self._next_after(replay.refused(), last, replay, deadline, trial)

    async def _next_link(
        self,
        last: VerifierLink,
        replay: Replay,
        deadline: float,
        broken: BrokenOffError,
        trial: contextlib.ExitStack,
    ) -> VerifierLink:
        """Return where a request goes on whose call broke off.

        Args:
            last: The verifier that broke off.
            replay: The request.
            deadline: Time by the clock at which it has failed.
            broken: How the call broke off.
            trial: Gets what ends the request's trial, if it needs one.
        """
        pause = replay.broken()
        if broken.death is not None:
            replay.saw(broken.death)
        emitted = len(replay.emitted_token_ids)
        if pause is None:
            raise verifier_unavailable(
                f"the verifier broke off after {emitted} tokens and again at each replay",
                emitted_tokens=emitted,
                replays=replay.replays,
            )
        logger.warning(
            "replaying request %s after %d tokens; verifier %s: %s",
            replay.request_id,
            emitted,
            last.address,
            broken,
            extra={"request_id": replay.request_id},
        )
        link = await self._next_after(pause, last, replay, deadline, trial)
        self._on_replay()
        return link

    async def _next_after(
        self,
        pause: float,
        last: VerifierLink,
        replay: Replay,
        deadline: float,
        trial: contextlib.ExitStack,
    ) -> VerifierLink:
        """Return where a replay goes on after a pause; the arguments are those of `_next_link`."""
        try:
            async with asyncio.timeout(max(deadline - self._clock(), 0.0)) as limit:
                await asyncio.sleep(pause)
                return await self._link_after(last, replay, trial)
        except TimeoutError:
            if limit.expired():
                raise deadline_exceeded() from None
            emitted = len(replay.emitted_token_ids)
            raise verifier_unavailable(
                f"the verifier broke off after {emitted} tokens and none came back within "
                f"{self._recovery_seconds:g} s",
                emitted_tokens=emitted,
                recovery_seconds=self._recovery_seconds,
            ) from None

    async def _link_after(
        self, last: VerifierLink, replay: Replay, trial: contextlib.ExitStack
    ) -> VerifierLink:
        """Wait for a verifier that may go on after `last`; `TimeoutError` if none comes back."""
        computation = replay.computation
        changed = self._pool.changes(self._recovery_seconds)
        while not self._pool.serves(computation):
            await changed(computation)
        replay.forget_deaths(self._pool.is_alive)
        if replay.convicted:
            raise _poison(replay)
        if replay.suspected:
            logger.warning(
                "%d verifiers died with request %s: it is tried alone",
                replay.deaths,
                replay.request_id,
                extra={"request_id": replay.request_id},
            )
            link = await self._pool.trials.begin(computation, changed)
            trial.callback(self._pool.end_trial)
            return link
        link_now = self._pool.choose(computation, avoid=(last,))
        return link_now or await self._pool.wait(computation, self._recovery_seconds)


def _poison(replay: Replay) -> ServiceError:
    """Return the error for a request that kills verifiers, and name it in the log."""
    emitted = len(replay.emitted_token_ids)
    logger.error(
        "request %s is refused: %d verifiers died with it after %d tokens, the last with nothing "
        "else that could be the cause",
        replay.request_id,
        replay.deaths,
        emitted,
        extra={"request_id": replay.request_id},
    )
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        "POISON_REQUEST",
        f"{replay.deaths} verifiers died while they ran this request; it is not sent to another",
        metadata={"deaths": replay.deaths, "emitted_tokens": emitted},
    )


def deadline_exceeded() -> ServiceError:
    """Return the error for a request that took longer than it may."""
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
        "the answer was not complete at the deadline",
    )
