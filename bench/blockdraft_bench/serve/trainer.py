"""The trainer of a service that learns: it goes on, or stands still, while load is measured."""

import contextlib
import os
import signal
from collections.abc import Iterator

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.process_time import descendant_with, family_cpu_seconds
from blockdraft_server.supervise.plan import TRAINER_MODULE


class Trainer:
    """The process that learns, beside a service that was started here."""

    def __init__(self, supervisor: int) -> None:
        """Look for nothing yet.

        Args:
            supervisor: Process id of `blockdraft serve`.
        """
        self._supervisor = supervisor

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop it for as long as the `with` block.

        Raises:
            BenchError: If there is none.
        """
        process = self._process()
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the processor seconds that it has used.

        Raises:
            BenchError: If there is none.
        """
        seconds = family_cpu_seconds(self._process())
        if seconds is None:
            raise BenchError("the trainer has ended")
        return seconds

    def _process(self) -> int:
        # Not kept: a trainer that ends is started again.
        found = descendant_with(self._supervisor, TRAINER_MODULE)
        if found is None:
            raise BenchError("the service has no trainer; it may have ended")
        return found
