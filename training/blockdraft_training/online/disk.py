"""Writing to a disk that may be full: said once, and tried again later."""

import logging
from collections.abc import Callable

from blockdraft_training.errors import TrainingError

logger = logging.getLogger(__name__)


class Disk:
    """What writes checkpoints and versions.

    Attributes:
        refuses: Whether the last write failed.
    """

    def __init__(self) -> None:
        """Begin in good hope."""
        self.refuses = False

    def tried(self, what: str, write: Callable[[], object]) -> bool:
        """Write; return whether that went well. The first failure of several is logged."""
        try:
            write()
        except (OSError, TrainingError) as error:
            if not self.refuses:
                logger.error("%s cannot be written, learning waits: %s", what, error)
            self.refuses = True
            return False
        if self.refuses:
            logger.info("%s can be written again", what)
        self.refuses = False
        return True
