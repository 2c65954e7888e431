"""Makes the scheduled faults happen to a running stack, and notes when."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.supervised import process_ids
from tools.chaos.load import Callers
from tools.chaos.schedule import DELAY_SECONDS, Fault, Kind
from tools.chaos.stack import Stack

# Both sides ping a silent connection after 20 s and give it up 10 s later.
HALF_OPEN_SECONDS = 40.0
RECONNECT_SECONDS = 5.0
RESTART_SECONDS = 180.0
_RUN_SECONDS, _REST_SECONDS = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that happened."""

    fault: Fault  # which
    began: float  # when, by the monotonic clock
    # Until when it can explain an error: what was killed serves again, or what was held up has
    # caught up.
    settled: float


async def inject(
    faults: Sequence[Fault],
    stack: Stack,
    callers: Callers,
    before: Callable[[Fault], Awaitable[None]],
) -> list[Happened]:
    """Make each fault happen when it comes due, after `before`; they may overlap."""

    async def due(fault: Fault) -> Happened:
        await callers.until(fault.after_requests)
        await before(fault)
        return await _happen(fault, stack)

    return list(await asyncio.gather(*map(due, faults)))


async def _happen(fault: Fault, stack: Stack) -> Happened:
    match fault.kind:
        case Kind.KILL | Kind.STOP | Kind.HANG | Kind.STARVE:
            return await _to_process(fault, stack)
        case _:
            return await _to_hop(fault, stack)


async def _to_hop(fault: Fault, stack: Stack) -> Happened:
    proxy = stack.proxies[fault.target]
    began = time.monotonic()
    match fault.kind:
        case Kind.CUT:
            proxy.cut()
            return Happened(fault, began, began + RECONNECT_SECONDS)
        case Kind.HALF_OPEN:
            proxy.leave_half_open()
            return Happened(fault, began, began + HALF_OPEN_SECONDS)
        case _:
            proxy.delay_seconds = DELAY_SECONDS
            await asyncio.sleep(fault.seconds)
            proxy.delay_seconds = 0.0
            return Happened(fault, began, time.monotonic() + RECONNECT_SECONDS)


async def _to_process(fault: Fault, stack: Stack) -> Happened:
    supervisor, name = stack.supervisor, fault.target
    async with asyncio.timeout(RESTART_SECONDS):
        # Nothing can happen to a process between two lives.
        while (process := process_ids(supervisor).get(name)) is None:
            await asyncio.sleep(0.05)
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        match fault.kind:
            case Kind.KILL:
                os.kill(process, signal.SIGKILL)
            case Kind.STARVE:
                await _starve(process, fault.seconds)
            case _:
                os.kill(process, signal.SIGSTOP)
                await _until_gone(stack, name, process, fault.seconds)
                os.kill(process, signal.SIGCONT)
    async with asyncio.timeout(RESTART_SECONDS):
        if fault.kind is Kind.KILL:
            await _until_gone(stack, name, process, RESTART_SECONDS)
        while not stack.lives(name):
            await asyncio.sleep(0.1)
    return Happened(fault, began, time.monotonic() + RECONNECT_SECONDS)


async def _starve(process: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            os.kill(process, signal.SIGSTOP)
            await asyncio.sleep(_REST_SECONDS)
            os.kill(process, signal.SIGCONT)
            await asyncio.sleep(_RUN_SECONDS)
    finally:
        os.kill(process, signal.SIGCONT)


async def _until_gone(stack: Stack, name: str, process: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while process_ids(stack.supervisor).get(name) == process and time.monotonic() < end:
        await asyncio.sleep(0.05)
