"""The circumstances of a measurement: command, environment, code, packages, machine."""

import hashlib
import importlib.metadata
import importlib.util
import pkgutil
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from blockdraft_models.processor import this_processor

if TYPE_CHECKING:
    from blockdraft_models.weights.checkpoint import Checkpoint

PACKAGES = ("blockdraft", "jax", "jaxlib", "flax", "numpy")
# Variables that may decide what is measured: ours, also those of a service that is started, and
# those of the libraries that compute.
_VARIABLES = re.compile(r"(BLOCKDRAFT|JAX|XLA|LIBTPU|TPU|OMP)_\w+")
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine: its processor, how many cores this process may use, its accelerators if any.

    `instructions` are those of the processor for bfloat16.
    """

    cpu: str
    cores: int
    accelerator: str | None
    instructions: tuple[str, ...]

    @property
    def device(self) -> str:
        """The accelerators, or else the processor."""
        return self.accelerator or self.cpu


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is decoded."""

    fingerprint: str
    name: str

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "Target":
        """Return the target of a checkpoint."""
        return cls(checkpoint.fingerprint, checkpoint.config.name)

    def __str__(self) -> str:
        """Return its name in captions."""
        return f"{self.name} ({self.fingerprint})"


@dataclass(frozen=True, slots=True)
class DrafterIdentity:
    """The identity of the model that drafts."""

    method: str
    fingerprint: str
    trained: bool
    block_size: int

    def __str__(self) -> str:
        """Return its name in captions."""
        trained = "trained" if self.trained else "untrained"
        return f"{trained} {self.method} drafter ({self.fingerprint}, blocks of {self.block_size})"


def digest(*parts: object) -> str:
    """Return a digest of dataclasses, numbers, texts and their containers, 16 hexadecimal digits.

    The order of sets and of mappings does not matter.
    """
    text = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may decide what is measured; no keys and passwords."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def packages() -> list[Path]:
    """Return the folders of all packages of this product that can be imported."""
    names = [
        module.name for module in pkgutil.iter_modules() if module.name.startswith("blockdraft_")
    ]
    specs = map(importlib.util.find_spec, sorted(names))
    return [Path(spec.origin).parent for spec in specs if spec and spec.origin]


def source_digest(folders: Sequence[Path]) -> str:
    """Return a digest of all Python files in packages as they are now, 16 hexadecimal digits."""
    files = [(file, folder) for folder in folders for file in folder.rglob("*.py")]
    return digest(
        {str(file.relative_to(folder.parent)): file.read_bytes() for file, folder in files}
    )


def commit(folders: Sequence[Path]) -> str | None:
    """Return the commit of the code in some folders, with "-dirty" if it was changed since.

    Changed files of the whole checkout count, and new ones that Python would find in the folders.
    None outside git, and of an installed copy, which may lie in the checkout of something else.
    """
    init_files = [str(folder / "__init__.py") for folder in folders]
    head = _git(folders[0], "rev-parse", "HEAD")
    if head is None or _git(folders[0], "ls-files", "--error-unmatch", *init_files) is None:
        return None
    changed = _git(folders[0], "diff", "--name-only", "HEAD")
    new = _git(folders[0], "ls-files", "--others", "--", *(f"{folder}/*.py" for folder in folders))
    return head if changed == new == "" else f"{head}-dirty"


def hardware() -> Hardware:
    """Return the machine this process runs on."""
    # Imported here: what measures a service must not take its accelerator.
    import jax

    devices, processor = jax.devices(), this_processor()
    accelerated = devices[0].platform != "cpu"
    return Hardware(
        cpu=processor.name,
        cores=processor.cores,
        accelerator=f"{len(devices)} x {devices[0].device_kind}" if accelerated else None,
        instructions=processor.instructions,
    )


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that decide what is measured."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
