"""The arithmetic of `blockdraft demo`: what its runs amount to. Prints nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from blockdraft_client.cli.output import step_seconds_json
from blockdraft_client.results import Completion, ModelInfo
from blockdraft_client.usage import StepSeconds, Usage

# More of them do not fit into a line; they are rarely accepted.
_SHOWN_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class ModeReport:
    """Runs of one kind, drafted or plain: medians over the runs.

    Attributes:
        tokens_per_second: Decoding speed; None if nothing was decoded after the first token.
        output_tokens: Tokens of one answer.
        ttft_seconds: Time to the first token.
        step_seconds: Time of one decoding step.
    """

    tokens_per_second: float | None
    output_tokens: int
    ttft_seconds: float
    step_seconds: StepSeconds

    @classmethod
    def from_usages(cls, usages: Sequence[Usage]) -> "ModeReport":
        """Sum up runs of the same request."""
        speeds = [usage.tokens_per_second for usage in usages]
        known = [speed for speed in speeds if speed is not None]
        steps = [_per_step(usage) for usage in usages]
        return cls(
            tokens_per_second=median(known) if known else None,
            output_tokens=round(median(usage.output_tokens for usage in usages)),
            ttft_seconds=median(usage.time_to_first_token_seconds for usage in usages),
            step_seconds=StepSeconds(
                verify=median(step.verify for step in steps),
                draft=median(step.draft for step in steps),
                transport=median(step.transport for step in steps),
                host=median(step.host for step in steps),
            ),
        )

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "output_tokens": self.output_tokens,
            "ttft_seconds": self.ttft_seconds,
        }


def _per_step(usage: Usage) -> StepSeconds:
    steps, total = usage.verification_steps or 1, usage.step_seconds
    return StepSeconds(
        total.verify / steps, total.draft / steps, total.transport / steps, total.host / steps
    )


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found.

    Attributes:
        answer: The streamed answer.
        identical: Whether every run, drafted or plain, gave the same token ids.
        plain: The runs without drafting.
        drafted: The runs with drafting.
        acceptance_length: τ over all drafted runs; None if they took no step.
        acceptance_per_position: Share of accepted tokens per draft position, over those runs.
        target: Name of the target.
        drafter: Method and fingerprint of the drafter; None if there is none, and lookup drafts.
        trained: Whether the drafter was trained for the target.
    """

    answer: str
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
        """Return how many times faster decoding is with drafting."""
        plain, drafted = self.plain.tokens_per_second, self.drafted.tokens_per_second
        return drafted / plain if plain and drafted else None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; `step_seconds` is one decoding step of the drafted runs."""
        return {
            "answer": self.answer,
            "identical": self.identical,
            "plain": self.plain.to_json(),
            "drafted": self.drafted.to_json(),
            "speedup": self.speedup,
            "acceptance_length": self.acceptance_length,
            "acceptance_per_position": list(self.acceptance_per_position),
            "step_seconds": step_seconds_json(self.drafted.step_seconds),
            "target": self.target,
            "drafter": self.drafter,
            "trained": self.trained,
        }


def demo_report(
    model: ModelInfo,
    warm_up: Sequence[Completion],
    plain: Sequence[Completion],
    drafted: Sequence[Completion],
) -> DemoReport:
    """Sum up the demo.

    Args:
        model: What was served.
        warm_up: Runs that count for the tokens but not for the times, the streamed one first.
        plain: Measured runs without drafting.
        drafted: Measured runs with drafting.
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
        answer=warm_up[0].text,
        identical=len({run.token_ids for run in (*warm_up, *plain, *drafted)}) == 1,
        plain=ModeReport.from_usages([run.usage for run in plain]),
        drafted=ModeReport.from_usages(usages),
        acceptance_length=total.acceptance_length,
        acceptance_per_position=total.acceptance_per_position,
        target=model.name,
        drafter=f"{attached.method}:{attached.fingerprint}" if attached is not None else None,
        trained=attached is not None and attached.trained,
    )


def _sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    width = max((len(row) for row in rows), default=0)
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(width))


def table_rows(report: DemoReport) -> list[tuple[str, str, str]]:
    """Return label, plain figure and drafted figure of each row of the demo's table."""
    plain, drafted = report.plain, report.drafted
    tau = "-" if report.acceptance_length is None else f"{report.acceptance_length:.2f}"
    shown = report.acceptance_per_position[:_SHOWN_POSITIONS]
    positions = " ".join(f"{share:.0%}" for share in shown)
    rows = [
        ("tokens/s", _speed(plain), _speed(drafted)),
        ("τ, tokens per step", "1.00", tau),
        ("accepted per position", "-", positions or "-"),
        ("first token", _milliseconds(plain.ttft_seconds), _milliseconds(drafted.ttft_seconds)),
        (
            "step",
            _milliseconds(plain.step_seconds.total),
            _milliseconds(drafted.step_seconds.total),
        ),
    ]
    for part in ("verify", "draft", "transport", "host"):
        before, after = getattr(plain.step_seconds, part), getattr(drafted.step_seconds, part)
        rows.append((f"  {part}", _milliseconds(before), _milliseconds(after)))
    return rows


def verdict(report: DemoReport) -> str:
    """Return in plain words what the figures mean."""
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
            f"There is no drafter for {report.target}: what was drafted is what prompt and answer "
            "repeat."
        )
    else:
        sentences.append(
            f"The drafter ({report.drafter}) is NOT trained for {report.target}: its guesses are "
            "noise, so expect τ near 1 and no speed-up. The demo drafts nevertheless, to show "
            "that the output stays the same."
        )
    return " ".join(sentences)


def _speed(mode: ModeReport) -> str:
    return "-" if mode.tokens_per_second is None else f"{mode.tokens_per_second:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
