"""What callers ask for, as a pure function of a seed."""

import random
from dataclasses import dataclass

from blockdraft_client import SamplingParams
from blockdraft_client.params import Priority

# Without a deadline of its own, a request may wait for whatever has to be started again.
PATIENT_SECONDS = 240.0
MOST_TOKENS = 120


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of one caller."""

    prompt: str  # what to continue
    sampling: SamplingParams  # how; always with a seed and a limit, so that it has one true answer
    whole: bool  # whether it is asked for in one message and not streamed
    leaves_after: int | None  # so many tokens after which the caller leaves; None to stay
    deadline_seconds: float  # how long it may take
    priority: Priority = "normal"  # whether it gives way to others
    excluded: bool = False  # whether nothing of it may be recorded

    @property
    def hurried(self) -> bool:
        """Whether the deadline may pass without a fault."""
        return self.deadline_seconds < PATIENT_SECONDS


def wanted(seed: int, count: int) -> list[Wanted]:
    """Return `count` requests.

    A third is greedy. One in five has stop strings, one in four comes whole, one in ten of the
    streams is left, one in ten requests has a deadline of 0.2 to 2 s, one in five is in the
    background, and every fifth is kept out of the training samples.
    """
    draw = random.Random(f"wanted {seed}")
    return [_request(draw, number) for number in range(count)]


def _request(draw: random.Random, number: int) -> Wanted:
    greedy = draw.random() < 1 / 3
    whole = draw.random() < 0.25
    leaves = not whole and draw.random() < 0.1
    sampling = SamplingParams(
        max_tokens=draw.randint(1, MOST_TOKENS),
        temperature=0.0 if greedy else draw.choice((0.3, 0.7, 1.0, 1.5)),
        top_p=None if greedy else draw.choice((None, 0.9)),
        top_k=None if greedy else draw.choice((None, 20)),
        seed=draw.getrandbits(32),
        stop=[chr(draw.randint(97, 122)), "the"] if draw.random() < 0.2 else (),
        ignore_eos=draw.random() < 0.5,
    )
    words = " ".join(draw.choice(("duck", "leg", "pond", "why", "how")) for _ in range(8))
    return Wanted(
        prompt=f"{number}: {words[: draw.randint(1, 40)]}",
        sampling=sampling,
        whole=whole,
        leaves_after=draw.randint(1, 30) if leaves else None,
        deadline_seconds=draw.uniform(0.2, 2.0) if draw.random() < 0.1 else PATIENT_SECONDS,
        priority="background" if draw.random() < 0.2 else "normal",
        excluded=number % 5 == 0,
    )
