"""The state of one request between its verifier calls; no I/O.

The choice of a token depends on the seed and its absolute position only, so a verifier of the same
computation that is given the tokens already delivered goes on exactly where the broken one stopped.

A verifier reports usage on its last message only. For a call that broke off, or that the server
cut off at a stop sequence, the server counts from the messages:

- exact: `output_tokens`, `verification_steps` (a message lists the tokens of each step; the first
  is the prompt's own pass), `accepted_tokens` and `accepted_per_position` (all tokens of a step but
  the last were accepted drafts), `prompt_lookup_accepted_tokens` and `forced_tokens`
- lower bounds: `drafted_tokens`, `drafted_per_position` and `prompt_lookup_drafted_tokens`
  (rejected drafts are never sent, so only the accepted ones are known), `cached_prompt_tokens` and
  `denoising_steps` (0)
- measured here: `prefill_time` (to the first message, so it includes `queue_time`, which is 0)
  and `decode_time`; `step_times` are 0
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.channel import Backoff, BackoffPolicy
from blockdraft_server.routing.verifier_stream import TRIED_TOKENS, Death

# Drawn at random from the first replay on: all streams of a dead verifier come back.
REPLAYING = BackoffPolicy(initial_seconds=0.1, max_seconds=2.0)
# Most replays of a request in all, as a multiple of the most in a row without a token.
REPLAYS_IN_ALL = 4
# So many verifiers may die while they run a request before it is suspected of killing them.
SUSPICIOUS_DEATHS = 2

_SUMMED = (
    "output_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "verification_steps",
    "prompt_lookup_drafted_tokens",
    "prompt_lookup_accepted_tokens",
    "forced_tokens",
    "denoising_steps",
)
_PER_POSITION = ("drafted_per_position", "accepted_per_position")
_TIMES = ("queue_time", "prefill_time", "decode_time")
_STEP_TIMES = ("verify_time", "draft_time", "transport_time", "host_time")


class Replay:
    """The state of one request: its tokens so far, its calls and its replays.

    Attributes:
        request: The request for the next call, with the tokens received so far, over all calls.
        replays: Number of times that the request was sent again.
    """

    def __init__(self, request: verifier_pb2.SequenceRequest, max_replays: int) -> None:
        """Remember a request that has no emitted tokens yet.

        It is sent again at most `max_replays` times in a row without gaining a token; in all,
        `REPLAYS_IN_ALL` times as often.
        """
        self.request = request
        self.replays = 0
        self._computation: str | None = None
        self._max_replays = max_replays
        self._backoff = Backoff(REPLAYING)
        self._failures = 0
        # Whether it was alone, by the process that died, in the order of the deaths.
        self._deaths: dict[str, bool] = {}
        self._gained_since_death = 0
        self._finished_calls: list[inference_pb2.Usage] = []
        self._meter: CallMeter | None = None

    @property
    def emitted(self) -> int:
        """Number of tokens received so far."""
        return len(self.request.emitted_token_ids)

    @property
    def computation(self) -> str | None:
        """Fingerprint of the computation that made the completion; None as long as it may be any.

        Another one, even of the same target, could choose other tokens and must not go on.
        """
        return self._computation if self.replays > 0 or self.emitted else None

    @property
    def finished(self) -> inference_pb2.FinishReason.ValueType | None:
        """Finish reason of the completion, judged by its tokens alone; None while it goes on.

        Matters when a call breaks after the last token but before its end was confirmed.
        """
        emitted = self.request.emitted_token_ids
        if emitted and emitted[-1] in self.request.sampling.stop_token_ids:
            return inference_pb2.FINISH_REASON_STOP
        if len(emitted) >= self.request.sampling.max_output_tokens:
            return inference_pb2.FINISH_REASON_LENGTH
        return None

    def begin(self, now: float, computation: str) -> verifier_pb2.SequenceRequest:
        """Return the request for the next call, made at `now` to a verifier of `computation`."""
        self._meter = CallMeter(now)
        self._computation = computation
        self.request.replay = self.replays > 0
        return self.request

    def refused(self) -> float:
        """Note that a verifier had no slot; return the pause before the next is asked."""
        self._close()
        return self._backoff.pause_seconds()

    def received(self, message: verifier_pb2.SequenceTokens, now: float) -> None:
        """Note a message that was taken at `now`."""
        assert self._meter is not None
        self._meter.steps(message.step_sizes, message.sources, now)
        self.request.emitted_token_ids.extend(message.token_ids)
        self._failures = 0
        self._backoff.reset()
        self._gained_since_death += len(message.token_ids)
        if self._gained_since_death >= TRIED_TOKENS:
            self._deaths.clear()
        if message.HasField("usage"):
            self._finished_calls.append(message.usage)
            self._meter = None

    def broken(self) -> float | None:
        """Note that the call broke; return the pause before the next, None to give up."""
        self._close()
        self._failures += 1
        if self._failures > self._max_replays:
            return None
        if self.replays >= REPLAYS_IN_ALL * self._max_replays:
            return None
        self.replays += 1
        return self._backoff.pause_seconds()

    def saw(self, death: Death) -> None:
        """Note that a verifier died while it may have been running the request."""
        self._deaths[death.process] = death.alone
        self._gained_since_death = 0

    def forget_deaths(self, is_alive: Callable[[str], bool]) -> None:
        """Forget the deaths of processes that live: only the connection had broken."""
        for process in filter(is_alive, tuple(self._deaths)):
            del self._deaths[process]

    @property
    def deaths(self) -> int:
        """Number of verifiers that died with it, without `TRIED_TOKENS` gained since."""
        return len(self._deaths)

    @property
    def suspected(self) -> bool:
        """Whether it may be the request that kills verifiers."""
        return self.deaths >= SUSPICIOUS_DEATHS

    @property
    def convicted(self) -> bool:
        """Whether nothing else explains the last of the deaths for which it is suspected."""
        return self.suspected and tuple(self._deaths.values())[-1]

    def usage(self) -> inference_pb2.Usage:
        """Return the request's usage over all its calls."""
        self._close()
        return total_usage(len(self.request.prompt_token_ids), self._finished_calls)

    def _close(self) -> None:
        if self._meter is not None:
            self._finished_calls.append(self._meter.usage())
            self._meter = None


class CallMeter:
    """Counts one verifier call as its messages arrive."""

    def __init__(self, started: float) -> None:
        """Begin at the time `started`, in seconds of any clock."""
        self._started = started
        self._first: float | None = None
        self._last = started
        self._sizes: list[int] = []
        self._sources: Counter[int] = Counter()

    def steps(self, sizes: Iterable[int], sources: Iterable[int], now: float) -> None:
        """Count steps that gained so many tokens each, in a message taken at `now`.

        `sources` has the `TokenSource` of each token.
        """
        self._sizes.extend(sizes)
        self._sources.update(sources)
        if self._first is None:
            self._first = now
        self._last = now

    def usage(self) -> inference_pb2.Usage:
        """Return the usage as known without the verifier's own report."""
        first = self._last if self._first is None else self._first
        # Decoding chooses one token a step; a canvas has several, all of them the target's own.
        denoised = self._sources[inference_pb2.TOKEN_SOURCE_TARGET] > len(self._sizes)
        accepted = [] if denoised else [size - 1 for size in self._sizes]
        depth = max(accepted, default=0)
        per_position = [sum(count > position for count in accepted) for position in range(depth)]
        return inference_pb2.Usage(
            output_tokens=sum(self._sizes),
            drafted_tokens=sum(accepted),
            accepted_tokens=sum(accepted),
            verification_steps=0 if denoised else max(len(self._sizes) - 1, 0),
            drafted_per_position=per_position,
            accepted_per_position=per_position,
            prompt_lookup_drafted_tokens=self._sources[inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP],
            prompt_lookup_accepted_tokens=self._sources[inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP],
            forced_tokens=self._sources[inference_pb2.TOKEN_SOURCE_GRAMMAR],
            prefill_time=_duration(int((first - self._started) * 1e9)),
            decode_time=_duration(int((self._last - first) * 1e9)),
        )


def total_usage(prompt_tokens: int, calls: Sequence[inference_pb2.Usage]) -> inference_pb2.Usage:
    """Return the usage of a request that took `calls`, in order."""
    total = inference_pb2.Usage(
        prompt_tokens=prompt_tokens,
        # A later call finds the earlier one's pages in the cache, which is no saving.
        cached_prompt_tokens=min(calls[0].cached_prompt_tokens, prompt_tokens) if calls else 0,
    )
    for name in _SUMMED:
        setattr(total, name, sum(getattr(call, name) for call in calls))
    for name in _PER_POSITION:
        columns = itertools.zip_longest(*(getattr(call, name) for call in calls), fillvalue=0)
        getattr(total, name).extend(map(sum, columns))
    steps = [call.step_times for call in calls]
    for whole, parts, names in ((total, calls, _TIMES), (total.step_times, steps, _STEP_TIMES)):
        for name in names:
            nanoseconds = sum(getattr(part, name).ToNanoseconds() for part in parts)
            getattr(whole, name).CopyFrom(_duration(nanoseconds))
    return total


def _duration(nanoseconds: int) -> Duration:
    result = Duration()
    result.FromNanoseconds(nanoseconds)
    return result
