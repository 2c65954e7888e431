"""What a request consumed, added up over the verifier calls it took.

A verifier reports usage on its last message only. For a call that broke off, or that the server
cut off at a stop sequence, the server counts itself what it saw:

- exact: `output_tokens`, `verification_steps` (a message says what each step gained; the first step
  is the prompt's own pass), `accepted_tokens` and `accepted_per_position` (all tokens of a step but
  the last were accepted drafts)
- lower bounds: `drafted_tokens` and `drafted_per_position` (rejected drafts are never sent, so
  only the accepted ones are known), `cached_prompt_tokens` (0), `lookup_drafted_tokens` and
  `lookup_accepted_tokens` (0: who drafted is not sent)
- measured here: `prefill_time` (to the first message, so it includes `queue_time`, which is 0)
  and `decode_time`; `step_times` are 0
"""

from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from blockdraft_protos.v1 import inference_pb2, verifier_pb2

_SUMMED = (
    "output_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "verification_steps",
    "lookup_drafted_tokens",
    "lookup_accepted_tokens",
)
_PER_POSITION = ("drafted_per_position", "accepted_per_position")
_TIMES = ("queue_time", "prefill_time", "decode_time")
_STEP_TIMES = ("verify_time", "draft_time", "transport_time", "host_time")


class CallMeter:
    """Counts one verifier call as its messages arrive."""

    def __init__(self, started: float) -> None:
        """Begin at the time `started`, in seconds of any clock."""
        self._started = started
        self._first: float | None = None
        self._last = started
        self._sizes: list[int] = []

    def steps(self, sizes: Iterable[int], now: float) -> None:
        """Count steps that gained so many tokens each, and were heard of at `now`."""
        self._sizes.extend(sizes)
        if self._first is None:
            self._first = now
        self._last = now

    def usage(self) -> verifier_pb2.TokenUsage:
        """Return what is known without the verifier's own report."""
        first = self._last if self._first is None else self._first
        accepted = [size - 1 for size in self._sizes]
        depth = max(accepted, default=0)
        per_position = [sum(count > position for count in accepted) for position in range(depth)]
        return verifier_pb2.TokenUsage(
            output_tokens=sum(self._sizes),
            drafted_tokens=sum(accepted),
            accepted_tokens=sum(accepted),
            verification_steps=max(len(self._sizes) - 1, 0),
            drafted_per_position=per_position,
            accepted_per_position=per_position,
            prefill_time=_duration(first - self._started),
            decode_time=_duration(self._last - first),
        )


def total_usage(
    prompt_tokens: int, calls: Sequence[verifier_pb2.TokenUsage]
) -> inference_pb2.Usage:
    """Return the usage of a request that took `calls`, in order."""
    total = inference_pb2.Usage(
        prompt_tokens=prompt_tokens,
        # A later call finds the earlier one's pages in the cache, which is no saving.
        cached_prompt_tokens=min(calls[0].cached_prompt_tokens, prompt_tokens) if calls else 0,
    )
    for name in _SUMMED:
        setattr(total, name, sum(getattr(call, name) for call in calls))
    for name in _PER_POSITION:
        columns = [getattr(call, name) for call in calls]
        for position in range(max(map(len, columns), default=0)):
            count = sum(column[position] for column in columns if position < len(column))
            getattr(total, name).append(count)
    for name in _TIMES:
        getattr(total, name).CopyFrom(_summed(calls, name))
    for name in _STEP_TIMES:
        getattr(total.step_times, name).CopyFrom(_summed(calls, name))
    return total


def _summed(calls: Sequence[verifier_pb2.TokenUsage], name: str) -> Duration:
    result = Duration()
    result.FromNanoseconds(sum(getattr(call, name).ToNanoseconds() for call in calls))
    return result


def _duration(seconds: float) -> Duration:
    result = Duration()
    result.FromNanoseconds(int(seconds * 1e9))
    return result
