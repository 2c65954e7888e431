"""The trainer of a service that learns: it goes on, or stands still, while load is measured."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from blockdraft_bench.errors import BenchError
from blockdraft_server.supervise.plan import TRAINER_MODULE


class Trainer:
    """The process that learns, beside a service that was started here.

    Its methods raise `BenchError` if there is none.
    """

    def __init__(self, supervisor: int, proc: Path = Path("/proc")) -> None:
        """Look for nothing yet; `supervisor` is the process id of `blockdraft serve`."""
        self._supervisor = supervisor
        self._proc = proc

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop it for as long as the `with` block."""
        process = self.process_id()
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the processor seconds that it and its living descendants have used."""
        processes = self._processes()
        family = _family(self.process_id(), processes)
        return sum(processes[one][1] for one in family) / os.sysconf("SC_CLK_TCK")

    def process_id(self) -> int:
        """Return its process id, which is not kept: a trainer that ends is started again."""
        for number in sorted(_family(self._supervisor, self._processes()) - {self._supervisor}):
            with contextlib.suppress(OSError):
                words = (self._proc / str(number) / "cmdline").read_bytes().split(b"\0")
                if TRAINER_MODULE.encode() in words:
                    return number
        raise BenchError("the service has no trainer; it may have ended")

    def _processes(self) -> dict[int, tuple[int, int]]:
        """Return parent and used ticks of each process."""
        found = {}
        for stat in self._proc.glob("[0-9]*/stat"):
            try:
                text = stat.read_text("utf-8", errors="replace")
            except OSError:
                continue  # It has ended.
            # The name, in parentheses, may hold anything; state and parent follow it.
            fields = text.rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        return found


def _family(process_id: int, processes: dict[int, tuple[int, int]]) -> set[int]:
    """Return a living process and its living descendants."""
    family = {process_id} & processes.keys()
    # A child may have a lower number than its parent: repeat until nobody joins.
    while joining := {
        number
        for number, (parent, _) in processes.items()
        if parent in family and number not in family
    }:
        family |= joining
    return family
