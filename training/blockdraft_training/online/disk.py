"""Writing to a disk that may be full: said once, and tried again later."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Disk:
    """What writes checkpoints and versions."""

    def __init__(self) -> None:
        """Begin in good hope."""
        self._refused: set[str] = set()

    def tried(self, what: str, write: Callable[[], object]) -> bool:
        """Write; return whether that went well.

        The first failure is logged, and that all is well again once everything that failed could
        be written: small files find room where large ones do not.
        """
        try:
            write()
        except OSError as error:
            if not self._refused:
                logger.error("%s cannot be written, learning waits: %s", what, error)
            self._refused.add(what)
            return False
        if what in self._refused:
            self._refused.remove(what)
            if not self._refused:
                logger.info("%s can be written again", what)
        return True
