"""What a run found, as one JSON object; and the command line that all runs have."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tools.chaos.check import Fate, Verdict
from tools.chaos.faults import Happened
from tools.chaos.learned import Learned

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run found."""

    seed: int  # of the schedule and of the requests
    seconds: float  # how long the load ran
    verdicts: Sequence[Verdict]  # of each request
    happened: Sequence[Happened]  # the faults
    # For each fault, the longest pause of each stream that it met.
    recoveries: Sequence[Sequence[float]]
    held: Mapping[str, float]  # what is still held when all is over, by name
    control: int  # how many answers after the last fault were not the true ones
    errors: Sequence[str]  # lines of the processes' log that tell of a defect
    learned: Learned  # what was learned meanwhile

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
    """Return what was found."""
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
        "recovery_seconds": _quantiles([wait for waits in found.recoveries for wait in waits]),
        "recovery_seconds_by_fault": {
            name: _quantiles(waits) for name, waits in _by_fault(found).items()
        },
    }


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


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m tools.NAME`, with what every run is told."""
    output = Path("bench-results") / f"{name.rpartition('.')[2]}.json"
    parser = argparse.ArgumentParser(f"python -m tools.{name}", description=description)
    parser.add_argument("--seed", type=int, default=1, help="of all choices")
    parser.add_argument("--output", type=Path, default=output)
    return parser


def tell(found: Mapping[str, Any], output: Path) -> None:
    """Write what was found to a file, and print it."""
    text = json.dumps(found, indent=2)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text + "\n")
    print(text)
