"""Loading beside the event loop, for which a process that is asked to stop does not wait."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Loading:
    """Runs one function in a thread of its own.

    The threads of executors are waited for at the end of a process, and nothing can make one stop
    that compiles.
    """

    def __init__(self) -> None:
        """Begin with `run`."""
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns, or raise what it raises."""
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

        self._thread = threading.Thread(target=load, name="loading", daemon=True)
        self._thread.start()
        return await future

    def leave(self) -> None:
        """End the process with status 0 if the function still runs.

        An end in order would take apart what the function uses.
        """
        if self._thread is not None and self._thread.is_alive():
            logging.shutdown()
            os._exit(0)
