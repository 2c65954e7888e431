"""A drafter's process that some versions kill or hang: those whose folder says so in a file.

It stands for weights that crash the compiler, a driver or the kernel's patience with memory, which
no test can bring about the same way everywhere.
"""

import os
import signal
import sys
from typing import Any

from blockdraft_drafter.command import CONFIGURATION, run
from blockdraft_drafter.learning import start
from blockdraft_drafter.learning.versions import VersionStore

HOW = {"kills": signal.SIGKILL, "hangs": signal.SIGSTOP}


def main() -> int:
    """Run what the command line says."""
    load_version = start.load_version

    def load(store: VersionStore, number: int, *rest: Any) -> Any:
        for name, number_of_signal in HOW.items():
            if (store.path(number) / name).exists():
                os.kill(os.getpid(), number_of_signal)
        return load_version(store, number, *rest)

    start.load_version = load
    return CONFIGURATION.main(run)


if __name__ == "__main__":
    sys.exit(main())
