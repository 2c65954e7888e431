"""What a run found, as one JSON object and as a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tests.chaos.check import Fate, Verdict
from tests.chaos.faults import Happened
from tests.chaos.learned import Learned

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run found.

    Attributes:
        seed: Of the schedule and of the requests.
        seconds: How long the load ran.
        verdicts: Of each request.
        happened: The faults.
        recoveries: For each fault, the longest pause of each stream that it met.
        held: What is still held when all is over, by name.
        control: How many answers after the last fault were not the true ones.
        errors: Lines of the processes' log that tell of a defect.
        learned: What was learned meanwhile.
    """

    seed: int
    seconds: float
    verdicts: Sequence[Verdict]
    happened: Sequence[Happened]
    recoveries: Sequence[Sequence[float]]
    held: Mapping[str, float]
    control: int
    errors: Sequence[str]
    learned: Learned

    @property
    def fates(self) -> Counter[Fate]:
        """How many requests met each fate."""
        return Counter(verdict.fate for verdict in self.verdicts)

    @property
    def good(self) -> bool:
        """Whether nothing was lost or changed, and nothing is held any more."""
        return not (
            any(not fate.good for fate in self.fates)
            or any(self.held.values())
            or self.control
            or self.errors
            or self.learned.wrong
        )


def as_json(found: Findings) -> dict[str, Any]:
    """Return what was found, for a file."""
    fates = found.fates
    return {
        "good": found.good,
        "seed": found.seed,
        "requests": len(found.verdicts),
        "faults": len(found.happened),
        "seconds": round(found.seconds, 1),
        "fates": {fate.name.lower(): fates[fate] for fate in Fate},
        "errors_by_cause": dict(
            Counter(each.why for each in found.verdicts if each.fate is Fate.EXPLAINED)
        ),
        "bad": [each.why for each in found.verdicts if not each.fate.good][:_SHOWN],
        "held": dict(found.held),
        "control_changed": found.control,
        "log_errors": list(found.errors[:_SHOWN]),
        "learned": asdict(found.learned),
        "timeline": _timeline(found),
        "recovery_seconds": _quantiles([wait for waits in found.recoveries for wait in waits]),
        "recovery_seconds_by_fault": {
            name: _quantiles(waits) for name, waits in _by_fault(found).items()
        },
    }


def as_page(found: Findings) -> str:
    """Return what was found, for a reader."""
    whole = as_json(found)
    lines = [
        f"{whole['requests']} requests and {whole['faults']} faults in {whole['seconds']} s, "
        f"seed {found.seed}",
        *(f"  {fates:5d} {fate}" for fate, fates in sorted(found.fates.items())),
        *(f"    {count:3d} x {why}" for why, count in whole["errors_by_cause"].items()),
        *(f"  BAD {why}" for why in whole["bad"]),
        f"still held: {', '.join(f'{k} {v:g}' for k, v in found.held.items() if v) or 'nothing'}",
        f"answers after the last fault that are wrong: {found.control}",
        f"{found.learned}",
        *(f"  BAD {wrong}" for wrong in found.learned.wrong),
        *(f"  LOG {line}" for line in whole["log_errors"]),
        f"{'the longest pause of a stream':40} streams    p50    p99    max, s",
    ]
    for name, row in (
        *whole["recovery_seconds_by_fault"].items(),
        ("all", whole["recovery_seconds"]),
    ):
        if row:
            lines.append(
                f"  {name:38} {row['streams']:7d} {row['p50']:6.2f} {row['p99']:6.2f} "
                f"{row['max']:6.2f}"
            )
    lines.append("GOOD: nothing was lost" if found.good else "BAD: see above")
    return "\n".join(lines)


def _timeline(found: Findings) -> list[dict[str, Any]]:
    """Return the faults in order: when each began, how long it could be felt, the worst pause."""
    first = min((each.began for each in found.happened), default=0.0)
    return sorted(
        (
            {
                "at_seconds": round(each.began - first, 1),
                "fault": f"{each.fault.kind} {each.fault.target}",
                "settled_after_seconds": round(each.settled - each.began, 1),
                "longest_pause_seconds": round(max(waits, default=0.0), 1),
            }
            for each, waits in zip(found.happened, found.recoveries, strict=True)
        ),
        key=lambda row: float(row["at_seconds"]),
    )


def _by_fault(found: Findings) -> dict[str, list[float]]:
    waits: dict[str, list[float]] = {}
    for each, seconds in zip(found.happened, found.recoveries, strict=True):
        waits.setdefault(f"{each.fault.kind} {each.fault.target}", []).extend(seconds)
    return dict(sorted(waits.items()))


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    p50, p99 = np.quantile(seconds, (0.5, 0.99))
    found = {"p50": p50, "p99": p99, "max": max(seconds)}
    return {"streams": len(seconds), **{name: round(float(v), 3) for name, v in found.items()}}
