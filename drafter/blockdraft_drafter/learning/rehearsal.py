"""A version is loaded in a process of its own before the drafter loads it.

A version that crashes or hangs the process that loads it does so to one for which nobody waits.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from jax import numpy as jnp

from blockdraft_drafter.compiled.definition import DEFAULT_BLOCK_SIZE
from blockdraft_drafter.learning.versions import VersionError
from blockdraft_drafter.sources import load_any
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target

# Beyond what reading and checking take on a slow disk of a busy machine.
_LONGEST_SECONDS = 300.0


def rehearse(folder: Path, target: str, longest_seconds: float = _LONGEST_SECONDS) -> None:
    """Load the drafter in a folder for a target, both named as on the command line.

    Raises VersionError if it cannot be loaded, or its loading crashes or takes too long.
    """
    command = [sys.executable, "-m", __name__, str(folder), target]
    # The chips belong to the processes that serve.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        process = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=longest_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise VersionError(f"its loading hung for {longest_seconds:g} s") from None
    if process.returncode:
        ended = f"its loading ended with status {process.returncode}"
        raise VersionError(process.stdout.strip() or ended)


def _main(folder: str, target: str) -> int:
    # Also if nobody waits for it any more.
    signal.alarm(int(_LONGEST_SECONDS))
    # Where memory runs out, this process is the one to end.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        checkpoint = load_checkpoint_config(resolve_target(target))
        load_any(Path(folder), checkpoint, block_size=DEFAULT_BLOCK_SIZE, dtype=jnp.bfloat16)
    except (ModelError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
