"""What one request remembers between the verifier calls it takes; no I/O.

The choice of a token depends on the seed and its absolute position only, so a verifier that is
given the tokens already delivered goes on exactly where the broken one stopped.
"""

from dataclasses import dataclass

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_server.routing.usage import CallMeter, total_usage


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """How a broken stream is taken up again.

    Attributes:
        max_replays: How often in a row a request is sent again without gaining a token.
        initial_delay_seconds: Pause before the second replay in a row; the first has none.
        max_delay_seconds: Longest pause; each is twice the one before.
    """

    max_replays: int = 8
    initial_delay_seconds: float = 0.05
    max_delay_seconds: float = 2.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_replays < 0:
            raise ValueError(f"max_replays must be >= 0, got {self.max_replays}")
        if not 0 <= self.initial_delay_seconds <= self.max_delay_seconds:
            raise ValueError(
                "0 <= initial_delay_seconds <= max_delay_seconds must hold, got "
                f"{self.initial_delay_seconds} and {self.max_delay_seconds}"
            )

    def delay_seconds(self, failures: int) -> float | None:
        """Return the pause after `failures` failures in a row, None to give up."""
        if failures > self.max_replays:
            return None
        if failures <= 1:
            return 0.0
        # The exponent is bounded because 2.0**1024 overflows.
        return min(
            self.initial_delay_seconds * 2.0 ** min(failures - 2, 64), self.max_delay_seconds
        )


class Replay:
    """One request: what was asked, what has arrived, what to ask next.

    Attributes:
        fingerprint: Identity of the target that began the answer; another one must not go on.
        replays: How often the request was sent again.
    """

    def __init__(
        self, request: verifier_pb2.StreamGenerateTokensRequest, policy: ReplayPolicy
    ) -> None:
        """Remember `request`, which has no emitted tokens yet."""
        self.fingerprint: str | None = None
        self.replays = 0
        self._request = request
        self._policy = policy
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

    def begin(self, now: float) -> verifier_pb2.StreamGenerateTokensRequest:
        """Return the request for the next call, made at `now`."""
        self._meter = CallMeter(now)
        return self._request

    def received(self, response: verifier_pb2.StreamGenerateTokensResponse, now: float) -> None:
        """Take note of a message that arrived at `now`."""
        if self._meter is None:
            raise RuntimeError("a message arrived outside a call")
        self._meter.message(len(response.token_ids), now)
        self._request.emitted_token_ids.extend(response.token_ids)
        self._failures = 0
        if response.HasField("usage"):
            self._finished_calls.append(response.usage)
            self._meter = None

    def broken(self) -> float | None:
        """Take note that the call broke; return the pause before the next, None to give up."""
        self._close()
        self._failures += 1
        delay = self._policy.delay_seconds(self._failures)
        if delay is not None:
            self.replays += 1
        return delay

    def usage(self) -> inference_pb2.Usage:
        """Return what the request consumed over all its calls."""
        self._close()
        return total_usage(len(self._request.prompt_token_ids), self._finished_calls)

    def _close(self) -> None:
        if self._meter is not None:
            self._finished_calls.append(self._meter.usage())
            self._meter = None
