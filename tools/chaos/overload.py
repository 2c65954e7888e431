"""`python -m tools.chaos.overload`: ten times as many requests as the service can answer."""

import asyncio
import random
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
from tools.chaos.report import command_line, tell
from tools.chaos.stack import SEQUENCES, VERIFIERS, Stack, running_stack

from blockdraft_client import ApiError, AsyncClient, BlockdraftError, SamplingParams

CONNECTIONS = 4
# Long answers, so that ten times the capacity is no work for who asks.
TOKENS = 200
RAMP_SECONDS = 5.0
MAX_WAITING = 32
_REFUSAL = "QUEUE_FULL"


class Load:
    """What was sent, and what became of it.

    Attributes:
        ended: When each answer came, by the monotonic clock.
        refused: How long each refusal took.
        errors: Other ends, which must not be.
    """

    def __init__(self) -> None:
        """Send nothing yet."""
        self.ended: list[float] = []
        self.refused: list[float] = []
        self.errors: Counter[str] = Counter()

    async def ask(self, client: AsyncClient, number: int) -> None:
        """Send one request and note what becomes of it."""
        began = time.monotonic()
        sampling = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=number, ignore_eos=True)
        try:
            await client.generate(f"{number}", sampling=sampling)
            self.ended.append(time.monotonic())
        except ApiError as error:
            if error.reason == _REFUSAL:
                self.refused.append(time.monotonic() - began)
            else:
                self.errors[error.reason] += 1
        except BlockdraftError as error:
            self.errors[type(error).__name__] += 1

    def per_second(self, since: float, until: float) -> float:
        """Return how many answers a second came in a time."""
        return sum(since <= ended < until for ended in self.ended) / (until - since)


async def capacity(clients: list[AsyncClient], seconds: float) -> float:
    """Return how many answers a second the service gives to as many callers as it can decode."""
    load, began = Load(), time.monotonic()

    async def caller(number: int) -> None:
        turn = 0
        while time.monotonic() < began + RAMP_SECONDS + seconds:
            await load.ask(clients[number % len(clients)], 1_000_000 + number + 100 * turn)
            turn += 1

    await asyncio.gather(*map(caller, range(SEQUENCES * len(VERIFIERS))))
    return load.per_second(began + RAMP_SECONDS, began + RAMP_SECONDS + seconds)


async def flood(clients: list[AsyncClient], rate: float, seconds: float, seed: int) -> Load:
    """Send `rate` requests a second at random times, whatever becomes of them."""
    draw, load, asking = random.Random(seed), Load(), set[asyncio.Task[None]]()
    due = time.monotonic()
    end = due + seconds
    number = 0
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asking.add(asyncio.ensure_future(load.ask(clients[number % len(clients)], number)))
        number += 1
        due += draw.expovariate(rate)
    await asyncio.gather(*asking)
    return load


async def overload(seed: int, times: float, seconds: float) -> dict[str, Any]:
    """Measure the capacity, then ask for `times` as much."""
    async with running_stack(MAX_WAITING) as stack:
        clients = [stack.client() for _ in range(CONNECTIONS)]
        try:
            able = await capacity(clients, seconds / 3)
            before = stack.sizes()
            began = time.monotonic()
            load = await flood(clients, times * able, seconds, seed)
            after = stack.sizes()
            again = await capacity(clients, seconds / 3)
        finally:
            for client in clients:
                await client.close()
        return {
            **_found(load, able, began, seconds),
            "capacity_afterwards_per_second": round(again, 2),
            "mib": {k: [round(before[k].mib, 1), round(after[k].mib, 1)] for k in before},
            "restarted": _restarted(stack, before, after),
        }


def _found(load: Load, able: float, began: float, seconds: float) -> dict[str, Any]:
    good = load.per_second(began + RAMP_SECONDS, began + seconds)
    offered = len(load.ended) + len(load.refused) + sum(load.errors.values())
    return {
        "tokens_of_an_answer": TOKENS,
        "capacity_per_second": round(able, 2),
        "offered_per_second": round(offered / seconds, 1),
        "goodput_per_second": round(good, 2),
        "goodput_share": round(good / able, 3),
        "refusals": _times(load.refused),
        "errors": dict(load.errors),
    }


def _times(seconds: list[float]) -> dict[str, float]:
    quantiles = {f"p{share}_seconds": np.quantile(seconds, share / 100) for share in (50, 99)}
    return {"count": len(seconds)} | {k: round(float(v), 4) for k, v in quantiles.items()}


def _restarted(stack: Stack, *looks: dict[str, Any]) -> list[str]:
    return sorted(set(stack.supervisor.children) ^ set.intersection(*map(set, looks)))


def main() -> int:
    """Run what the command line says; 1 if anything but an answer or a refusal came."""
    parser = command_line("chaos.overload", __doc__)
    parser.add_argument("--times", type=float, default=10.0, help="the capacity")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    found = asyncio.run(overload(args.seed, args.times, args.seconds))
    tell(found, args.output)
    return int(bool(found["errors"] or found["restarted"]))


if __name__ == "__main__":
    sys.exit(main())
