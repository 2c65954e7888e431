"""What every measurement's JSON report has: what it is of, and what it was measured with."""

import importlib.metadata
import importlib.util
import pkgutil
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from blockdraft_bench.common.record import digest
from blockdraft_models.processor import this_processor

if TYPE_CHECKING:
    from blockdraft_models.weights.checkpoint import Checkpoint

PACKAGES = ("blockdraft", "jax", "jaxlib", "flax", "numpy")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine.

    Attributes:
        cores: How many cores this process may use.
        accelerator: Number and kind of its accelerators; None if there is none.
        instructions: Those of its processor for bfloat16; None in results that do not say.
    """

    cpu: str
    cores: int
    accelerator: str | None
    instructions: tuple[str, ...] | None = None

    @property
    def device(self) -> str:
        """What computes."""
        return self.accelerator or self.cpu


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is decoded; some results know it only by its fingerprint."""

    fingerprint: str
    name: str | None = None

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "Target":
        """Return what a report says of a checkpoint."""
        return cls(checkpoint.fingerprint, checkpoint.config.name)

    def __str__(self) -> str:
        """Return what to call it in captions."""
        return self.fingerprint if self.name is None else f"{self.name} ({self.fingerprint})"


@dataclass(frozen=True, slots=True)
class Drafter:
    """The model that drafts."""

    method: str
    fingerprint: str
    trained: bool

    def __str__(self) -> str:
        """Return what to call it in captions."""
        trained = "trained" if self.trained else "untrained"
        return f"{trained} {self.method} drafter ({self.fingerprint})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """A report of what a machine does without a model; each measurement adds its own.

    Attributes:
        benchmark: Name of the measurement.
        command: The command that made it, as a shell reads it.
        commit: The commit of the code, as `commit` tells it.
        versions: Of Python and packages; None if not installed.
        hardware: The machine.
    """

    benchmark: str
    command: str
    commit: str | None
    versions: dict[str, str | None]
    hardware: Hardware

    @property
    def made_on(self) -> str:
        """Device and commit, for captions."""
        return f"{self.hardware.device}; commit {self.commit or 'unknown'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(MachineReport):
    """A report on a model, to which each measurement adds its own.

    Attributes:
        target: What was decoded.
    """

    target: Target


class Origin(TypedDict):
    """The fields of a report that say what it was measured with."""

    command: str
    commit: str | None
    versions: dict[str, str | None]
    hardware: Hardware


def origin(commit: str | None) -> Origin:
    """Return what this process measures with; `commit` is that of its `Run`."""
    return Origin(command=command_line(), commit=commit, versions=versions(), hardware=hardware())


def command_line() -> str:
    """Return the command that started this process, as a shell reads it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def packages() -> list[Path]:
    """Return the folders of all packages of this product that can be imported."""
    found = [each.name for each in pkgutil.iter_modules() if each.name.startswith("blockdraft_")]
    specs = map(importlib.util.find_spec, sorted(found))
    return [Path(spec.origin).parent for spec in specs if spec and spec.origin]


def source_digest(folders: Sequence[Path]) -> str:
    """Return 16 hexadecimal digits that stand for all Python files in packages as they are now."""
    files = [(file, folder) for folder in folders for file in folder.rglob("*.py")]
    return digest(
        {str(file.relative_to(folder.parent)): file.read_bytes() for file, folder in files}
    )


def commit(folders: Sequence[Path]) -> str | None:
    """Return the commit the code in some folders is at, with "-dirty" if it is other code.

    Changed files of the whole checkout count, and new ones that Python would find in the folders.
    None outside git, and of an installed copy, which may lie in the checkout of something else.
    """
    known = [str(folder / "__init__.py") for folder in folders]
    head = _git(folders[0], "rev-parse", "HEAD")
    if head is None or _git(folders[0], "ls-files", "--error-unmatch", *known) is None:
        return None
    changed = _git(folders[0], "diff", "--name-only", "HEAD")
    new = _git(folders[0], "ls-files", "--others", "--", *(f"{each}/*.py" for each in folders))
    return head if changed == new == "" else f"{head}-dirty"


def hardware() -> Hardware:
    """Return the machine this process runs on."""
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
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
