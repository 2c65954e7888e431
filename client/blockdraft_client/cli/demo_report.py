"""The arithmetic of `blockdraft demo`: what its runs amount to. Prints nothing."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from blockdraft_client.model_info import ModelInfo
from blockdraft_client.results import Completion
from blockdraft_client.usage import StepSeconds, Usage

# More of them do not fit into a line; they are rarely accepted.
_SHOWN_POSITIONS = 8
_PARTS = tuple(field.name for field in dataclasses.fields(StepSeconds))


@dataclass(frozen=True, slots=True)
class ModeReport:
    """Runs of one kind, drafted or plain: medians over the runs.

    Attributes:
        tokens_per_second: Decoding speed; None if nothing was decoded after the first token.
        output_tokens: Tokens of one completion.
        ttft_seconds: Time to the first token.
        step_seconds: Time of one decoding step.
    """

    tokens_per_second: float | None
    output_tokens: int
    ttft_seconds: float
    step_seconds: StepSeconds

    @classmethod
    def of(cls, usages: Sequence[Usage]) -> "ModeReport":
        """Sum up runs of the same request."""
        speeds = [usage.tokens_per_second for usage in usages]
        known_speeds = [speed for speed in speeds if speed is not None]
        return cls(
            tokens_per_second=median(known_speeds) if known_speeds else None,
            output_tokens=round(median(usage.output_tokens for usage in usages)),
            ttft_seconds=median(usage.time_to_first_token_seconds for usage in usages),
            step_seconds=StepSeconds(*(_median_per_step(usages, part) for part in _PARTS)),
        )


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The results of the demo.

    Attributes:
        completion: The streamed text.
        identical: Whether every run, drafted or plain, gave the same token ids.
        plain: The runs without drafting.
        drafted: The runs with drafting.
        acceptance_length: τ over all drafted runs; None if they took no step.
        acceptance_per_position: Share of accepted tokens per draft position, over those runs.
        target: Name of the target.
        drafter: Method and fingerprint of the drafter; None if only prompt lookup drafts.
        trained: Whether the drafter was trained for the target.
    """

    completion: str
    identical: bool
    plain: ModeReport
    drafted: ModeReport
    acceptance_length: float | None
    acceptance_per_position: tuple[float, ...]
    target: str
    drafter: str | None
    trained: bool

    @property
    def speedup(self) -> float | None:
        """Return the speed of decoding with drafting, as a multiple of the plain speed."""
        plain, drafted = self.plain.tokens_per_second, self.drafted.tokens_per_second
        return drafted / plain if plain and drafted else None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; `step_seconds` is one decoding step of the drafted runs."""
        value = dataclasses.asdict(self)
        del value["plain"]["step_seconds"]
        return value | {
            "speedup": self.speedup,
            "step_seconds": value["drafted"].pop("step_seconds"),
        }


def demo_report(
    model: ModelInfo,
    warm_up: Sequence[Completion],
    plain: Sequence[Completion],
    drafted: Sequence[Completion],
) -> DemoReport:
    """Sum up the runs of the demo.

    Those of `warm_up` count for the tokens but not for the times; the streamed one is the first.
    """
    usages = [run.usage for run in drafted]
    total = Usage(
        verification_steps=sum(usage.verification_steps for usage in usages),
        accepted_tokens=sum(usage.accepted_tokens for usage in usages),
        drafted_per_position=_sums([usage.drafted_per_position for usage in usages]),
        accepted_per_position=_sums([usage.accepted_per_position for usage in usages]),
    )
    attached = model.drafter
    return DemoReport(
        completion=warm_up[0].text,
        identical=len({run.token_ids for run in (*warm_up, *plain, *drafted)}) == 1,
        plain=ModeReport.of([run.usage for run in plain]),
        drafted=ModeReport.of(usages),
        acceptance_length=total.acceptance_length,
        acceptance_per_position=total.acceptance_per_position,
        target=model.name,
        drafter=f"{attached.method}:{attached.fingerprint}" if attached is not None else None,
        trained=attached is not None and attached.trained,
    )


def table_rows(report: DemoReport) -> Iterator[tuple[str, str, str]]:
    """Yield label, plain figure and drafted figure of each row of the demo's table."""
    plain, drafted = report.plain, report.drafted
    tau = "-" if report.acceptance_length is None else f"{report.acceptance_length:.2f}"
    shown = report.acceptance_per_position[:_SHOWN_POSITIONS]
    yield "tokens/s", _speed(plain), _speed(drafted)
    yield "τ, tokens per step", "1.00", tau
    yield "accepted per position", "-", " ".join(f"{share:.0%}" for share in shown) or "-"
    yield "TTFT", _milliseconds(plain.ttft_seconds), _milliseconds(drafted.ttft_seconds)
    steps = plain.step_seconds, drafted.step_seconds
    yield "step", _milliseconds(steps[0].total), _milliseconds(steps[1].total)
    for part in _PARTS:
        before, after = (_milliseconds(getattr(step, part)) for step in steps)
        yield f"  {part}", before, after


def verdict(report: DemoReport) -> str:
    """Return the meaning of the figures in plain words."""
    if report.identical:
        sentences = ["The drafted tokens are identical to the plain ones."]
    else:
        sentences = ["WRONG: drafted and plain tokens differ."]
    if report.speedup is not None:
        sentences.append(f"With drafting, decoding ran at {report.speedup:.2f}x the plain speed.")
    if report.trained:
        sentences.append(f"The drafter ({report.drafter}) was trained for {report.target}.")
    elif report.drafter is None:
        sentences.append(
            f"There is no drafter for {report.target}: only prompt lookup drafted, from what "
            "prompt and completion repeat."
        )
    else:
        sentences.append(
            f"The drafter ({report.drafter}) is NOT trained for {report.target}: its drafts are "
            "random, so expect τ near 1 and no speed-up. The demo drafts nevertheless, to show "
            "that the output stays the same."
        )
    return " ".join(sentences)


def _median_per_step(usages: Sequence[Usage], part: str) -> float:
    seconds: list[float] = [getattr(usage.step_seconds, part) for usage in usages]
    steps = [usage.verification_steps or 1 for usage in usages]
    return median(total / number for total, number in zip(seconds, steps, strict=True))


def _sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, itertools.zip_longest(*rows, fillvalue=0)))


def _speed(mode: ModeReport) -> str:
    return "-" if mode.tokens_per_second is None else f"{mode.tokens_per_second:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
