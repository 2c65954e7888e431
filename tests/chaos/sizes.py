"""How much memory, and how many descriptors and threads, processes have."""

from dataclasses import dataclass

import psutil
from tests.chaos.stack import Stack
from tests.supervised import process_ids


@dataclass(frozen=True, slots=True)
class Size:
    """What a process has.

    Attributes:
        mib: Resident memory.
        descriptors: Open files and sockets.
        threads: Threads.
    """

    mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: int) -> "Size":
        """Look at a process."""
        found = psutil.Process(process)
        return cls(found.memory_info().rss / 2**20, found.num_fds(), found.num_threads())


def sizes(stack: Stack) -> dict[str, Size]:
    """Look at the processes of a stack."""
    return {name: Size.of(process) for name, process in process_ids(stack.supervisor).items()}
