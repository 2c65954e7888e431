"""A drafter's process that some versions kill or hang: those whose folder says so in a file.

It stands for weights that crash the compiler, a driver or the kernel's patience with memory, which
no test can bring about the same way everywhere.
"""

import os
import signal
import sys
from typing import Any

from jaxtyping import DTypeLike

from blockdraft_drafter.command import CONFIGURATION, run
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.learning import start
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_models.weights.loading import Checkpoint

HOW = {"kills": signal.SIGKILL, "hangs": signal.SIGSTOP}


def main() -> int:
    """Run what the command line says."""
    load_version = start.load_version

    def load(
        store: VersionStore, number: int, like: Drafter[Any], target: Checkpoint, dtype: DTypeLike
    ) -> Drafter[Any]:
        for name, number_of_signal in HOW.items():
            if (store.path(number) / name).exists():
                os.kill(os.getpid(), number_of_signal)
        return load_version(store, number, like, target, dtype)

    start.load_version = load
    return CONFIGURATION.main(run)


if __name__ == "__main__":
    sys.exit(main())
