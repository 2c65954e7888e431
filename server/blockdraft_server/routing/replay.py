"""What one request remembers between the verifier calls it takes; no I/O.

The choice of a token depends on the seed and its absolute position only, so a verifier of the same
computation that is given the tokens already delivered goes on exactly where the broken one stopped.
"""

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.backoff import Backoff, BackoffPolicy
from blockdraft_server.routing.usage import CallMeter, total_usage

# From the second replay in a row on. The first has no pause: the verifier it goes to is another
# one, or has just become healthy again.
REPLAYING = BackoffPolicy(initial_seconds=0.05, max_seconds=2.0)


class Replay:
    """One request: what was asked, what has arrived, what to ask next.

    Attributes:
        computation: Fingerprint of the computation that began the answer, None before. Another
            one, even of the same target, could choose other tokens and must not go on.
        replays: How often the request was sent again.
    """

    def __init__(self, request: verifier_pb2.SequenceRequest, max_replays: int) -> None:
        """Remember a request.

        Args:
            request: What to ask of a verifier; has no emitted tokens yet.
            max_replays: How often in a row it is sent again without gaining a token.
        """
        self.computation: str | None = None
        self.replays = 0
        self._request = request
        self._max_replays = max_replays
        self._backoff = Backoff(REPLAYING)
        self._failures = 0
        self._finished_calls: list[verifier_pb2.TokenUsage] = []
        self._meter: CallMeter | None = None

    @property
    def emitted_token_ids(self) -> list[int]:
        """The tokens received so far, over all calls."""
        return list(self._request.emitted_token_ids)

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

    def begin(self, now: float) -> verifier_pb2.SequenceRequest:
        """Return the request for the next call, made at `now`."""
        self._meter = CallMeter(now)
        return self._request

    def received(self, message: verifier_pb2.SequenceTokens, now: float) -> None:
        """Take note of a message that was taken at `now`."""
        if self._meter is None:
            raise RuntimeError("a message arrived outside a call")
        self._meter.steps(message.step_sizes, now)
        self._request.emitted_token_ids.extend(message.token_ids)
        self._failures = 0
        self._backoff.reset()
        if message.HasField("usage"):
            self._finished_calls.append(message.usage)
            self._meter = None

    def broken(self) -> float | None:
        """Take note that the call broke; return the pause before the next, None to give up."""
        self._close()
        self._failures += 1
        if self._failures > self._max_replays:
            return None
        self.replays += 1
        return self._backoff.pause_seconds() if self._failures > 1 else 0.0

    def usage(self) -> inference_pb2.Usage:
        """Return what the request consumed over all its calls."""
        self._close()
        return total_usage(len(self._request.prompt_token_ids), self._finished_calls)

    def _close(self) -> None:
        if self._meter is not None:
            self._finished_calls.append(self._meter.usage())
            self._meter = None
