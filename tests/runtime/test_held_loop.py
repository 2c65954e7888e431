import asyncio
import time

from blockdraft_runtime.held_loop import TICK_SECONDS, HeldLoop


async def test_finds_the_callback_that_holds_the_loop() -> None:
    told: list[float] = []
    held = HeldLoop(told.append)
    held.start()
    for _ in range(5):
        await asyncio.sleep(TICK_SECONDS)
    began = time.monotonic()
    time.sleep(10 * TICK_SECONDS)  # it is to hold the loop
    hold = time.monotonic() - began
    for _ in range(3):
        await asyncio.sleep(TICK_SECONDS)
    held.stop()
    assert held.longest_seconds == max(told)
    assert hold - TICK_SECONDS <= max(told)
    # It is one look that comes late, however long the hold.
    assert sum(late >= max(told) / 2 for late in told) <= 2
    looks = len(told)
    await asyncio.sleep(3 * TICK_SECONDS)
    assert len(told) == looks
