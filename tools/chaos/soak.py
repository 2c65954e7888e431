"""`python -m tools.chaos.soak`: load for a long time, and whether anything grows."""

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tools.chaos.check import Fate, judge
from tools.chaos.load import ask, true_answers
from tools.chaos.report import command_line, tell
from tools.chaos.run import defects, until_nothing_is_held
from tools.chaos.stack import Size, Stack, running_stack
from tools.chaos.wanted import wanted

from blockdraft_client import AsyncClient

REQUESTS = 400
AT_ONCE = 24
READ_SECONDS = 5.0
# A caller changes its connection after so many requests, mostly with answers under way on it.
REQUESTS_OF_A_CONNECTION = 60
WARM_SHARE = 0.25
PARTS = 6
MOST_GROWTH = 0.02


class Soak:
    """Callers that come and go, and what is seen of the processes meanwhile.

    Attributes:
        fates: What became of the requests.
        readings: At the processes, one after another.
    """

    def __init__(self, stack: Stack, seed: int) -> None:
        """Send nothing yet."""
        self._stack = stack
        self._wanted = wanted(seed, REQUESTS)
        self.fates: Counter[str] = Counter()
        self.readings: list[dict[str, Size]] = []
        self._client: AsyncClient | None = None
        self._asked = 0

    async def run(self, seconds: float) -> None:
        """Ask for so long."""
        async with self._stack.client() as client:
            self._true = await true_answers(client, self._wanted, AT_ONCE)
        end = time.monotonic() + seconds
        await asyncio.gather(self._read_sizes(end), *(self._call(end) for _ in range(AT_ONCE)))
        if self._client is not None:
            await self._client.close()

    async def _call(self, end: float) -> None:
        while time.monotonic() < end:
            number = self._asked % REQUESTS
            client = await self._connection()
            self._asked += 1
            try:
                heard = await ask(client, self._wanted[number])
            except asyncio.CancelledError:
                # So a call hears that its own connection was closed.
                if client is self._client:
                    raise
                self.fates[Fate.LEFT.name.lower()] += 1
                continue
            if client is not self._client and heard.error is not None:
                # What had come must be right all the same.
                heard = replace(heard, left=True)
            fate = judge(self._wanted[number], heard, self._true[number], ()).fate
            self.fates[fate.name.lower()] += 1

    async def _connection(self) -> AsyncClient:
        if self._client is None or self._asked % REQUESTS_OF_A_CONNECTION == 0:
            old, self._client = self._client, self._stack.client()
            if old is not None:
                await old.close()
        return self._client

    async def _read_sizes(self, end: float) -> None:
        while time.monotonic() < end:
            self.readings.append(self._stack.sizes())
            await asyncio.sleep(READ_SECONDS)


def growth(readings: Sequence[dict[str, Size]]) -> dict[str, dict[str, Any]]:
    """Compare the readings after the warm-up with the last ones, process by process."""
    warm = readings[int(WARM_SHARE * len(readings)) :]
    part = max(len(warm) // PARTS, 1)
    return {
        name: {
            **_growth(warm[:part], warm[-part:], name),
            "mib_all_along": [
                round(
                    statistics.median(reading[name].mib for reading in readings[at : at + part]), 2
                )
                for at in range(0, len(readings), part)
            ],
        }
        for name in warm[0]
    }


def _growth(
    first: Sequence[dict[str, Size]], last: Sequence[dict[str, Size]], name: str
) -> dict[str, Any]:
    def middle(readings: Sequence[dict[str, Size]], what: str) -> float:
        return float(statistics.median(getattr(reading[name], what) for reading in readings))

    mib = middle(first, "mib"), middle(last, "mib")
    return {
        "mib": [round(each, 1) for each in mib],
        "mib_growth": round(mib[1] / mib[0] - 1, 4),
        "descriptors": [middle(first, "descriptors"), middle(last, "descriptors")],
        "threads": [middle(first, "threads"), middle(last, "threads")],
    }


async def soak(seed: int, seconds: float) -> dict[str, Any]:
    """Run the soak and say what it found."""
    async with running_stack() as stack:
        soaking = Soak(stack, seed)
        await soaking.run(seconds)
        held = await until_nothing_is_held(stack)
        errors = defects(stack.log)
    return {
        "seconds": seconds,
        "fates": dict(soaking.fates),
        "processes": growth(soaking.readings),
        "held": {name: count for name, count in held.items() if count},
        "log_errors": errors[:20],
    }


def main() -> int:
    """Run what the command line says; 1 if memory grew, or an answer was wrong."""
    parser = command_line("chaos.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    found = asyncio.run(soak(args.seed, 60 * args.minutes))
    tell(found, args.output)
    grown = any(each["mib_growth"] > MOST_GROWTH for each in found["processes"].values())
    wrong = any(not Fate[fate.upper()].good for fate in found["fates"])
    return int(grown or wrong or bool(found["held"] or found["log_errors"]))


if __name__ == "__main__":
    sys.exit(main())
