"""One unbroken token stream out of as many verifier calls as it takes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection

import grpc

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import verifier_unavailable
from blockdraft_server.routing.link import VerifierLink
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.routing.replay import Replay
from blockdraft_server.routing.verifier_stream import BrokenOffError

logger = logging.getLogger(__name__)


class TokenRouter:
    """Sends requests to verifiers and resumes broken streams."""

    def __init__(
        self,
        pool: VerifierPool,
        recovery_seconds: float,
        on_replay: Callable[[], None] = lambda: None,
    ) -> None:
        """Route over `pool`; a broken stream waits `recovery_seconds` for a verifier."""
        self._pool = pool
        self._recovery_seconds = recovery_seconds
        self._on_replay = on_replay

    async def stream(
        self, replay: Replay, deadline: float
    ) -> AsyncGenerator[verifier_pb2.SequenceTokens, None]:
        """Yield the messages of the request that `replay` holds, until its end.

        The generator must be closed (`contextlib.aclosing`): that cancels the sequence. At the
        `deadline`, by the monotonic clock, the request has failed.

        `ServiceError`: The verifier's own refusal, UNAVAILABLE when no verifier resumes the
        request, DEADLINE_EXCEEDED at the deadline.
        """
        link = await self._first_link(deadline)
        refused: set[VerifierLink] = set()
        # Ends the request's trial, if it has one.
        with contextlib.ExitStack() as trial:
            while True:
                try:
                    async with contextlib.aclosing(_call(link, replay, deadline)) as messages:
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
                    trial.close()
                    refused.add(link)
                    elsewhere = self._elsewhere(replay, refused, error)
                    if elsewhere is None:
                        refused.clear()
                        pause = replay.refused()
                        elsewhere = await self._after(pause, link, replay, deadline, trial)
                    link = elsewhere
                    continue
                trial.close()
                refused.clear()
                finish = replay.finished
                if finish is not None:
                    # All tokens had arrived; only the message that ends the stream is missing.
                    yield verifier_pb2.SequenceTokens(finish_reason=finish)
                    return
                pause = self._pause(link, replay, broken)
                link = await self._after(pause, link, replay, deadline, trial)
                self._on_replay()

    async def _first_link(self, deadline: float) -> VerifierLink:
        link = self._pool.choose()
        if link is None and not self._pool.serves():
            raise self._pool.unavailable()
        async with _waiting(deadline, "no verifier is ready"):
            return link or await self._pool.wait(None, self._recovery_seconds)

    def _elsewhere(
        self, replay: Replay, refused: Collection[VerifierLink], refusal: ServiceError
    ) -> VerifierLink | None:
        """Return the verifier to ask next, after others had no slot; None to pause first.

        A new request asks each verifier once. A replay was admitted before: it asks again until its
        deadline, as it would wait in a queue.
        """
        if replay.suspected:
            return None
        link = self._pool.choose(replay.computation, avoid=refused)
        if link is not None and link not in refused:
            return link
        if replay.replays == 0:
            raise refusal
        return None

    def _pause(self, last: VerifierLink, replay: Replay, broken: BrokenOffError) -> float:
        """Return the pause in seconds after a call broke off; UNAVAILABLE if it was the last."""
        pause = replay.broken()
        if broken.death is not None:
            replay.saw(broken.death)
        if pause is None:
            raise verifier_unavailable(
                f"the verifier broke off after {replay.emitted} tokens and again at each replay",
                emitted_tokens=replay.emitted,
                replays=replay.replays,
            )
        logger.warning(
            "replaying request %s after %d tokens; verifier %s: %s",
            replay.request.request_id,
            replay.emitted,
            last.address,
            broken,
            extra={"request_id": replay.request.request_id},
        )
        return pause

    async def _after(
        self,
        pause: float,
        last: VerifierLink,
        replay: Replay,
        deadline: float,
        trial: contextlib.ExitStack,
    ) -> VerifierLink:
        """Return the verifier that resumes a request; `trial` gets the callback that ends it."""
        emitted, seconds = replay.emitted, self._recovery_seconds
        message = f"the verifier broke off after {emitted} tokens and none came back within "
        message += f"{seconds:g} s"
        about = {"emitted_tokens": emitted, "recovery_seconds": seconds}
        async with _waiting(deadline, message, **about):
            await asyncio.sleep(pause)
            return await self._link_after(last, replay, trial)

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
                replay.request.request_id,
                extra={"request_id": replay.request.request_id},
            )
            link = await self._pool.trials.begin(computation, changed)
            trial.callback(self._pool.trials.end)
            return link
        link_now = self._pool.choose(computation, avoid=(last,))
        return link_now or await self._pool.wait(computation, self._recovery_seconds)


async def _call(
    link: VerifierLink, replay: Replay, deadline: float
) -> AsyncGenerator[verifier_pb2.SequenceTokens, None]:
    now = time.monotonic()
    request = replay.begin(now, link.known_description.computation_fingerprint)
    with link.decode(request) as feed:
        timer = asyncio.get_running_loop().call_later(
            max(deadline - now, 0.0), feed.fail, deadline_exceeded()
        )
        try:
            ended = False
            while not ended:
                message = await feed.take()
                replay.received(message, time.monotonic())
                yield message
                ended = bool(message.finish_reason)
        finally:
            timer.cancel()


@contextlib.asynccontextmanager
async def _waiting(deadline: float, message: str, **metadata: object) -> AsyncIterator[None]:
    """Wait for a verifier until the deadline; `TimeoutError` within means that none comes back."""
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise deadline_exceeded() from None
        raise verifier_unavailable(message, **metadata) from None


def _poison(replay: Replay) -> ServiceError:
    """Return the error for a request that kills verifiers, and name it in the log."""
    logger.error(
        "request %s is refused: %d verifiers died with it after %d tokens, the last with nothing "
        "else that could be the cause",
        replay.request.request_id,
        replay.deaths,
        replay.emitted,
        extra={"request_id": replay.request.request_id},
    )
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        "POISON_REQUEST",
        f"{replay.deaths} verifiers died while they ran this request; it is not sent to another",
        metadata={"deaths": replay.deaths, "emitted_tokens": replay.emitted},
    )


def deadline_exceeded() -> ServiceError:
    """Return the error for a request that was not finished at its deadline."""
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
        "the completion was not finished at the deadline",
    )
