"""The recompilation guard: after warm-up, nothing may be compiled.

A shape that slipped past the buckets would stall every request for seconds. The guard hears of
every compilation from JAX itself, so that one in a forgotten corner is counted too.
"""

import logging
from collections.abc import Callable

import jax.monitoring

logger = logging.getLogger(__name__)

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class RecompilationGuard:
    """Counts compilations while armed."""

    def __init__(self, on_compilation: Callable[[], None]) -> None:
        """Listen from now on; `on_compilation` is called for each one while armed."""
        self._on_compilation = on_compilation
        self._armed = False
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def arm(self) -> None:
        """Forbid compilations from now on."""
        self._armed = True

    def disarm(self) -> None:
        """Allow compilations again, for a planned warm-up."""
        self._armed = False

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if self._armed and event == COMPILE_EVENT:
            self._on_compilation()
            logger.error("compiled for %.2f s after warm-up; a shape has leaked", duration_secs)
