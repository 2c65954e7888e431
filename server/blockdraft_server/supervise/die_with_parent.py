"""Starts a command that does not outlive the process that asked for it.

Run as a script: `python -IS die_with_parent.py PARENT_PID COMMAND…`. It asks the kernel to be
killed when the parent dies, however that happens, and becomes the command; the wish survives
`exec`. Doing this between fork and exec of the parent (`preexec_fn`) would run Python code in a
copy of a process with threads, which can lock up.

Linux only. Elsewhere the command just starts, and a killed supervisor leaves it behind.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the command; `arguments` are the parent's process id and the command."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        # The parent may have died before the wish was made.
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
