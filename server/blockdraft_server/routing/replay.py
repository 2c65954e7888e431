"""What one request remembers between the verifier calls it takes; no I/O.

The choice of a token depends on the seed and its absolute position only, so a verifier of the same
computation that is given the tokens already delivered goes on exactly where the broken one stopped.
"""

from collections.abc import Callable

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.channel import Backoff, BackoffPolicy
from blockdraft_server.routing.decode_stream import TRIED_TOKENS, Death
from blockdraft_server.routing.usage import CallMeter, total_usage

# Drawn at random from the first replay on: all streams of a dead verifier come back.
REPLAYING = BackoffPolicy(initial_seconds=0.1, max_seconds=2.0)
# A request is sent again so many times as often in all as in a row without a token.
REPLAYS_IN_ALL = 4
# So many verifiers may die while they run a request before it is suspected of killing them.
SUSPICIOUS_DEATHS = 2


class Replay:
    """One request: what was asked, what has arrived, what to ask next.

    Attributes:
        replays: How often the request was sent again.
    """

    def __init__(self, request: verifier_pb2.SequenceRequest, max_replays: int) -> None:
        """Remember a request.

        Args:
            request: What to ask of a verifier; has no emitted tokens yet.
            max_replays: How often in a row it is sent again without gaining a token; in all,
                `REPLAYS_IN_ALL` times as often.
        """
        self.replays = 0
        self._computation: str | None = None
        self._request = request
        self._max_replays = max_replays
        self._backoff = Backoff(REPLAYING)
        self._failures = 0
        # Whether it was alone, by the process that died, in the order of the deaths.
        self._deaths: dict[str, bool] = {}
        self._gained_since_death = 0
        self._finished_calls: list[verifier_pb2.TokenUsage] = []
        self._meter: CallMeter | None = None

    @property
    def request_id(self) -> str:
        """Identifier of the request."""
        return self._request.request_id

    @property
    def emitted_token_ids(self) -> list[int]:
        """The tokens received so far, over all calls."""
        return list(self._request.emitted_token_ids)

    @property
    def computation(self) -> str | None:
        """Fingerprint of the computation that the answer is of, None as long as it may be any.

        Another one, even of the same target, could choose other tokens and must not go on.
        """
        begun = self.replays > 0 or self._request.emitted_token_ids
        return self._computation if begun else None

    @property
    def finished(self) -> verifier_pb2.TokenFinishReason.ValueType | None:
        """How the answer has ended, judged by its tokens alone; None while it goes on.

        Matters when a call breaks after the last token but before its end was confirmed.
        """
        emitted = self._request.emitted_token_ids
        if emitted and emitted[-1] in self._request.stop_token_ids:
            return verifier_pb2.TOKEN_FINISH_REASON_STOP
        if len(emitted) >= self._request.max_output_tokens:
            return verifier_pb2.TOKEN_FINISH_REASON_LENGTH
        return None

    def begin(self, now: float, computation: str) -> verifier_pb2.SequenceRequest:
        """Return the request for the next call, made at `now` to a verifier of `computation`."""
        self._meter = CallMeter(now)
        self._computation = computation
        self._request.replay = self.replays > 0
        return self._request

    def refused(self) -> float:
        """Take note that a verifier had no place; return the pause before the next is asked."""
        self._close()
        return self._backoff.pause_seconds()

    def received(self, message: verifier_pb2.SequenceTokens, now: float) -> None:
        """Take note of a message that was taken at `now`."""
        if self._meter is None:
            raise RuntimeError("a message arrived outside a call")
        self._meter.steps(message.step_sizes, now)
        self._request.emitted_token_ids.extend(message.token_ids)
        self._failures = 0
        self._backoff.reset()
        self._gained_since_death += len(message.token_ids)
        if self._gained_since_death >= TRIED_TOKENS:
            self._deaths.clear()
        if message.HasField("usage"):
            self._finished_calls.append(message.usage)
            self._meter = None

    def broken(self) -> float | None:
        """Take note that the call broke; return the pause before the next, None to give up."""
        self._close()
        self._failures += 1
        if self._failures > self._max_replays:
            return None
        if self.replays >= REPLAYS_IN_ALL * self._max_replays:
            return None
        self.replays += 1
        return self._backoff.pause_seconds()

    def saw(self, death: Death) -> None:
        """Take note that a verifier died while it may have been running the request."""
        self._deaths[death.process] = death.alone
        self._gained_since_death = 0

    def forget_deaths(self, is_alive: Callable[[str], bool]) -> None:
        """Forget the deaths of processes that live: only the connection had broken."""
        for process in filter(is_alive, tuple(self._deaths)):
            del self._deaths[process]

    @property
    def deaths(self) -> int:
        """How many verifiers died with it, without `TRIED_TOKENS` gained since."""
        return len(self._deaths)

    @property
    def suspected(self) -> bool:
        """Whether it may be what kills verifiers."""
        return len(self._deaths) >= SUSPICIOUS_DEATHS

    @property
    def convicted(self) -> bool:
        """Whether nothing else explains the last of the deaths for which it is suspected."""
        return self.suspected and tuple(self._deaths.values())[-1]

    def usage(self) -> inference_pb2.Usage:
        """Return what the request consumed over all its calls."""
        self._close()
        return total_usage(len(self._request.prompt_token_ids), self._finished_calls)

    def _close(self) -> None:
        if self._meter is not None:
            self._finished_calls.append(self._meter.usage())
            self._meter = None
