"""How long tests wait for what must happen; the whole of it passes only when it does not."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], bool], seconds: float = 5 * PATIENCE_SECONDS) -> None:
    """Wait for processes that may have to start first."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
