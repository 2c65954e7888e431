"""Compiled programs that outlive a process, found without tracing their functions.

JAX's own cache finds a program only after it is traced and lowered. For the steps of a target of 30
layers that takes two seconds each, at every start. Here the key of a program is a hash of all that
it depends on: the caller's description, the code and the compilers. JAX's cache must be off: on
CPU, a program that was read from it cannot be written again.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from blockdraft_models.cache import write_at_once
from blockdraft_models.kernels.library import arithmetic
from blockdraft_models.processor import processor_facts, usable_cores

logger = logging.getLogger(__name__)

# Packages that trace, lower and compile.
_COMPILERS = ("jax", "jaxlib", "libtpu", "flax", "numpy")
# Variables that XLA and JAX read; those of JAX itself are in its configuration.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC")


@dataclass(frozen=True, slots=True)
class KeptPrograms:
    """A folder of compiled programs, which several processes may use at once.

    `package` is the one whose code, with that of this one, determines the programs.
    """

    folder: Path
    package: str

    def compiled(
        self,
        made_from: object,
        lower: Callable[[], Lowered],
        mesh: Mesh | None = None,
    ) -> Compiled:
        """Return the program that `lower` lowers, from the folder if it has been compiled before.

        `made_from` describes all that the program depends on besides code. The program runs on the
        devices of `mesh`, or on the default device.
        """
        if jax.config.values["jax_compilation_cache_dir"] is not None:
            raise RuntimeError("JAX keeps what it compiles, so that it cannot be kept twice")
        devices = jax.devices()[:1] if mesh is None else mesh.devices.flatten().tolist()
        key = program_key(self.package, made_from, devices)
        if key is None:
            return lower().compile()
        path = self.folder / key
        program = _read(path, devices)
        if program is not None:
            return program
        compiled = lower().compile()
        _write(path, compiled)
        return compiled


def _read(path: Path, devices: Sequence[jax.Device]) -> Compiled | None:
    try:
        packed = path.read_bytes()
    except OSError:
        return None
    try:
        executable, inputs, outputs = pickle.loads(zlib.decompress(packed))
        program: Compiled = serialize_executable.deserialize_and_load(
            executable, inputs, outputs, execution_devices=devices
        )
    except Exception as error:  # whatever a damaged file may cause
        logger.warning("compiling anew what cannot be read from %s: %s", path, error)
        return None
    return program


def _write(path: Path, compiled: Compiled) -> None:
    try:
        packed = zlib.compress(pickle.dumps(serialize_executable.serialize(compiled)), level=1)
        write_at_once(path, packed)
    except Exception as error:  # not every platform can say its programs
        logger.warning("every start compiles anew, because %s cannot be kept: %s", path, error)


def program_key(package: str, made_from: object, devices: Sequence[jax.Device]) -> str | None:
    """Return a hash of all that a program depends on; None if that cannot be pickled."""
    pickled = io.BytesIO()
    pickler = _Pickler(pickled)
    try:
        pickler.dump((made_from, tuple(devices)))
    except Exception as error:  # as of a graph with functions that have no name
        logger.warning("every start compiles anew: %s", error)
        return None
    ours = __name__.partition(".")[0]
    parts = [pickled.getvalue(), _compiled_by().encode(), _code(ours), _code(package)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


class _Pickler(pickle.Pickler):
    """Pickles devices by platform, kind and id."""

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, jax.Device):
            return None
        return value.platform, value.device_kind, value.id


def _compiled_by() -> str:
    """Describe the compilers: versions, flags, the platform, and the processor of this host."""
    backend, facts = jax.local_devices()[0].client, processor_facts()
    return repr(
        (
            _versions(),
            [os.environ.get(name) for name in _VARIABLES],
            sorted(jax.config.values.items()),
            (backend.platform, backend.platform_version),
            # XLA compiles for the instructions of the host.
            (facts.get("model name"), facts.get("flags") or facts.get("Features")),
            usable_cores(),
            # This also loads the kernels, which a program that calls them takes for granted.
            arithmetic(),
        )
    )


@functools.cache
def _versions() -> tuple[str, ...]:
    versions = []
    for name in _COMPILERS:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(versions)


@functools.cache
def _code(package: str) -> bytes:
    """Return a digest of the source of a package."""
    spec = importlib.util.find_spec(package)
    digest = hashlib.sha256(package.encode())
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.digest()
