"""Runs of load: the level of load on a service, and the outcome of each request."""

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

Mode = Literal["closed", "open"]
# "learning" is "drafted" with requests that are recorded, beside a trainer that learns from them.
Method = Literal["drafted", "plain", "learning"]


class LoadLevel(NamedTuple):
    """A level of load: "closed" keeps `value` requests in flight, "open" sends so many a second."""

    mode: Mode
    value: float

    def __str__(self) -> str:
        """Return its name in tables."""
        return f"{self.value:g} {'at a time' if self.mode == 'closed' else 'per second'}"


class RunKey(NamedTuple):
    """The key of a run: method, level of load, number of requests, and round."""

    mode: Mode
    load: float
    method: Method
    requests: int
    round: int = 0

    @property
    def level(self) -> LoadLevel:
        """The level of load."""
        return LoadLevel(self.mode, self.load)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; times are seconds since the run began, on the client's clock."""

    # Number within the run; the same number has the same prompt and seed in every run of a round.
    request: int
    sample_id: str
    scheduled: float  # when it was due: by the arrival schedule, or when its place became free
    sent: float
    ended: float  # when its last message, or its failure, arrived
    # When each message with tokens arrived; `chunk_tokens` says how many it had.
    chunk_times: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    # Why the completion ended; None if it failed, which `error` explains.
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  # those the service had computed for an earlier request
    verification_steps: int = 0  # forward passes of the target after the prompt
    accepted_tokens: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the whole completion arrived, with at least one token."""
        return self.error is None and bool(self.chunk_times)

    @property
    def ttft(self) -> float:
        """Seconds from when it was due to its first token."""
        return self.chunk_times[0] - self.scheduled

    @property
    def latency(self) -> float:
        """Seconds from when it was due to its last token."""
        return self.chunk_times[-1] - self.scheduled

    @property
    def inter_token_latencies(self) -> tuple[float, ...]:
        """Seconds between neighbouring messages with tokens."""
        return tuple(after - before for before, after in itertools.pairwise(self.chunk_times))

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first message; None if all came at once."""
        tokens = sum(self.chunk_tokens[1:])
        return (self.chunk_times[-1] - self.chunk_times[0]) / tokens if tokens else None


@dataclass(frozen=True, slots=True)
class Records:
    """One run of load, its requests in the order in which they were due.

    `trainer_seconds` is the processor time of the trainer meanwhile; None if it stood still, or
    there is none.
    """

    requests: tuple[RequestRecord, ...]
    trainer_seconds: float | None = None
