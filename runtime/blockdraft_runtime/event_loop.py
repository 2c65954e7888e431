"""Work kept off an event loop, and a measure of how long the loop is held all the same."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

# Holds are measured too short by up to this; checking more often would cost more than it tells.
TICK_SECONDS = 0.01
WINDOW_SECONDS = 60.0
# Smaller data take less time than handing them to a thread.
_INLINE_BYTES = 4096

T = TypeVar("T")


class Loading:
    """Runs a function in a thread for which a stopping process does not wait.

    A process that ends waits for the threads of executors, and nothing can stop a thread that
    compiles.
    """

    def __init__(self) -> None:
        """Begin with `run`."""
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of `function`, run on a thread, or raise its exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(settle: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                settle(outcome)

        def load() -> None:
            settle: Callable[[Any], None] = future.set_result
            outcome: Any
            try:
                outcome = function()
            except Exception as error:
                settle, outcome = future.set_exception, error
            # The loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, settle, outcome)

        self.spawn(load)
        return await future

    def spawn(self, function: Callable[[], None]) -> None:
        """Run the function on a new thread; the thread before it has ended."""
        self._thread = threading.Thread(target=function, name="loading", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the process with status 0 if the function still runs.

        An orderly exit would destroy objects that the function uses.
        """
        if self._thread is not None and self._thread.is_alive():
            logging.shutdown()
            os._exit(0)


async def aside(threads: Executor, size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Return `function(*arguments)`, computed in a thread if it processes many bytes."""
    if size <= _INLINE_BYTES:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)


def return_free_memory() -> None:
    """Return freed heap pages to the system, where the C library has `malloc_trim`.

    Compiling leaves hundreds of MiB of freed heap behind, which glibc keeps for itself: about
    270 MiB after the verifier's warm-up for the default target. The objects that remain are frozen:
    a garbage collection that visits 210,000 of them holds the process for 0.07 s.
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class HeldLoop:
    """Measures how late the regular checks of a running event loop come.

    An event loop is held for as long as one callback lets no other run.
    """

    def __init__(self, on_hold: Callable[[float], None] = lambda seconds: None) -> None:
        """Begin with `start`; `on_hold` is called with the lateness of each check, in seconds."""
        self._on_hold = on_hold
        self._loop: asyncio.AbstractEventLoop  # once it is started
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._window_end = 0.0
        self._longest = 0.0
        self._longest_before = 0.0

    def start(self) -> None:
        """Begin to check the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._window_end = self._loop.time() + WINDOW_SECONDS
        self._wait()

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def longest_seconds(self) -> float:
        """The longest hold of the last one to two minutes."""
        return max(self._longest, self._longest_before)

    def _wait(self) -> None:
        self._due = self._loop.time() + TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        late = max(now - self._due, 0.0)
        if now >= self._window_end:
            self._longest_before, self._longest = self._longest, 0.0
            self._window_end = now + WINDOW_SECONDS
        self._longest = max(self._longest, late)
        self._on_hold(late)
        self._wait()
