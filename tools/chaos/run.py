"""One run: true answers, then load and faults together, then what is left."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from tools.chaos.check import judge, recovery_seconds
from tools.chaos.faults import inject
from tools.chaos.learned import what_was_learned
from tools.chaos.learning import Versions, Watch
from tools.chaos.load import Callers, ask, true_answers
from tools.chaos.report import Findings
from tools.chaos.schedule import Fault
from tools.chaos.stack import HANG_SECONDS, Stack, running_stack
from tools.chaos.wanted import Wanted, wanted

from blockdraft_client import Completion

# Half-open connections and requests behind them are given up within 30 s.
QUIET_SECONDS = 60.0
CONTROLS = 32
# What a defect leaves in a log. Errors that tell of a peer's death are none.
LINES_OF_A_DEFECT = 30
DEFECT_SIGNS = ("Traceback", "unexpected error", "unexpected verifier error", "Task exception")


async def chaos(
    seed: int,
    requests: int,
    planned: Sequence[Fault],
    at_once: int,
    hang_seconds: float = HANG_SECONDS,
) -> Findings:
    """Run `requests` requests of a seed, `at_once` at a time, while the faults happen."""
    asked = wanted(seed, requests)
    async with running_stack(learns=True, hang_seconds=hang_seconds) as stack:
        versions = Versions(stack.target, stack.learning, seed)
        await asyncio.to_thread(versions.add_some)
        watch = Watch(stack.learning, stack.supervisor)
        async with stack.client() as client, watch.watching():
            true = await true_answers(client, asked, at_once)
            callers = Callers(asked, stack.client)
            began = time.monotonic()
            heard, happened, _ = await asyncio.gather(
                callers.run(at_once),
                inject(planned, stack, callers, versions.before),
                versions.come_and_go(callers, requests),
            )
            seconds = time.monotonic() - began
            steps = watch.steps()
            await stack.until_whole()
            held = await until_nothing_is_held(stack)
            wrong = await control(stack, asked[:CONTROLS], true)

            async def ask_again() -> None:
                nonlocal wrong
                wrong += await control(stack, asked[:CONTROLS], true)

            learned = await what_was_learned(stack, versions, watch, steps, asked, true, ask_again)
        errors = defects(stack.log)
    verdicts = [judge(*each, happened) for each in zip(asked, heard, true, strict=True)]
    # The background stands still for others, too.
    front = [one for each, one in zip(asked, heard, strict=True) if each.priority != "background"]
    recoveries = recovery_seconds(happened, front)
    return Findings(seed, seconds, verdicts, happened, recoveries, held, wrong, errors, learned)


async def until_nothing_is_held(stack: Stack) -> dict[str, float]:
    """Wait until requests hold nothing; return what is held in the end."""
    end = time.monotonic() + QUIET_SECONDS
    while any((held := await stack.held()).values()) and time.monotonic() < end:
        await asyncio.sleep(0.5)
    return held


async def control(stack: Stack, asked: Sequence[Wanted], true: Sequence[Completion]) -> int:
    """Ask again, with drafting and without faults; return how many answers are not true."""
    async with stack.client() as client:
        heard = await asyncio.gather(*(ask(client, each) for each in asked))
    return sum(
        not judge(each, one, answer, ()).fate.good
        for each, one, answer in zip(asked, heard, true, strict=False)
    )


def defects(log: Path) -> list[str]:
    """Return the lines of a log that tell of a defect, each with those around it."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [
        "\n".join(lines[max(number - 2, 0) : number + LINES_OF_A_DEFECT])
        for number, line in enumerate(lines)
        if any(sign in line for sign in DEFECT_SIGNS)
    ]
