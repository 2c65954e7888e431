"""The compiled kernels of this processor: made at the first start, found at later ones.

The library is kept beside its source, where Python keeps bytecode, or in the cache if that folder
cannot be written. An image ships libraries for whole generations of processors, which
`python -m blockdraft_models.kernels.library` makes.
"""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import jax

from blockdraft_models.cache import default_cache_dir, locked
from blockdraft_models.processor import processor_facts

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cc")
TARGETS = ("product", "row_sums", "normalize", "attention")
"""Functions that XLA calls, named `blockdraft_` and one of these."""

_COMPILERS = ("c++", "g++", "clang++")
# A compiler would choose the rounding of contracted expressions.
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-w")
_NATIVE = "native"
# Generations of processors by the name that compilers have for them, with a few of the
# instructions that they must have, as Linux calls these; the newest first.
_GENERATIONS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "fma", "bmi2", "f16c"},
}
_PATIENCE_SECONDS = 300.0


def in_kernels() -> bool:
    """Return whether this process computes with the kernels: on one CPU, if they load.

    XLA cannot divide a call of them over several devices.
    """
    return jax.default_backend() == "cpu" and jax.device_count() == 1 and _loaded()


def arithmetic() -> str:
    """Return the name of the products' and sums' implementation, which decides their last bits."""
    return f"kernels {_digest()}" if in_kernels() else "XLA"


@functools.cache
def _loaded() -> bool:
    try:
        library = ctypes.CDLL(str(_built()))
    except OSError as error:
        logger.warning(
            "computing without kernels, as exactly but slower: %s. "
            "A C++ compiler such as g++ 12 makes them at the next start",
            error,
        )
        return False
    for name in TARGETS:
        function = getattr(library, f"blockdraft_{name}")
        jax.ffi.register_ffi_target(
            f"blockdraft_{name}", jax.ffi.pycapsule(function), platform="cpu"
        )
    return True


def _built() -> Path:
    """Return the library for this processor, compiled now if there is none.

    Raises:
        OSError: If it cannot be compiled.
    """
    facts = processor_facts()
    flags = facts.get("flags") or facts.get("Features") or ""
    description = f"{facts.get('model name')} {flags}".encode()
    name = f"{_NATIVE}-{hashlib.sha256(description).hexdigest()[:8]}"
    fitting = (name for name, needed in _GENERATIONS.items() if needed <= set(flags.split()))
    folders = (_beside_source(), default_cache_dir() / "kernels")
    for processor in (name, *fitting):
        for folder in folders:
            if (path := _path(folder, processor)).is_file():
                return path
    path = _path(folders[0] if os.access(SOURCE.parent, os.W_OK) else folders[1], name)
    with locked(path):
        if not path.is_file():
            _compile(path, _NATIVE)
    return path


def _beside_source() -> Path:
    return SOURCE.parent / "__pycache__"


def _path(folder: Path, processor: str) -> Path:
    return folder / f"kernels-{_digest()}-{processor}.so"


@functools.cache
def _digest() -> str:
    """Return a hash of the source; processor and compiler do not change the results."""
    digest = hashlib.sha256(repr((_FLAGS, jax.__version__)).encode())
    for file in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _compile(path: Path, processor: str) -> None:
    """Compile for a processor, with the compiler in CXX or else the first of the known ones."""
    started = time.perf_counter()
    named = os.environ.get("CXX", "").split()
    compilers = [named] if named else [[name] for name in _COMPILERS]
    compiler = next((command for command in compilers if shutil.which(command[0])), None)
    if compiler is None:
        names = " ".join(command[0] for command in compilers)
        raise FileNotFoundError(f"no C++ compiler among {names}")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
        library = Path(scratch) / path.name
        flags = (*_FLAGS, f"-march={processor}", f"-I{jax.ffi.include_dir()}")
        command = [*compiler, *flags, str(SOURCE), "-o", str(library)]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{compiler[0]} takes longer than {error.timeout:.0f} s") from error
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no message"]
            raise OSError(f"{compiler[0]} fails: {lines[-1]}")
        os.replace(library, path)
    logger.info("compiled the kernels in %.1f s", time.perf_counter() - started)


if __name__ == "__main__":
    _beside_source().mkdir(exist_ok=True)
    for generation in _GENERATIONS:
        _compile(_path(_beside_source(), generation), generation)
