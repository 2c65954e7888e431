"""Stands in for `blockdraft serve`: a `FakeInference` in a process of its own, with a child.

Run as `python -m tests.fakes.serve_inference MODE --listen ADDRESS ...`. Modes: "serve" stops on
SIGTERM, "stubborn" ignores it, "die" ends at once. The child's process id goes into the file named
by FAKE_CHILD_PID.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.fakes.inference import running_fake


def main() -> None:
    mode, listen = sys.argv[1], sys.argv[sys.argv.index("--listen") + 1]
    print("arguments:", *sys.argv[2:], flush=True)
    if mode == "die":
        sys.exit("cannot load the model")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["FAKE_CHILD_PID"]).write_text(str(child.pid))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if mode == "stubborn" else stop.set())
    with running_fake(port=int(listen.rpartition(":")[2])):
        print(f"blockdraft serves fake on {listen}", flush=True)
        while not stop.wait(0.05):
            pass
    # The child is left behind on purpose.


if __name__ == "__main__":
    main()
