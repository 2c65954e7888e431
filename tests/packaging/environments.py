"""An environment that holds the built wheel and nothing but what it declares to need."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "blockdraft"


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with the wheel in it, and a folder of what each set of extras needs."""

    folder: Path
    dependencies: Path

    @classmethod
    def of(cls, wheel: Path, folder: Path) -> "Installation":
        """Install `wheel`, without what it needs, into a new environment in `folder`."""
        environment = folder / "venv"
        venv.create(environment, symlinks=True)
        python = environment / "bin" / "python"
        install = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
        subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
        return cls(environment, folder / "dependencies")

    @property
    def site_packages(self) -> Path:
        """Where the wheel was installed."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def run(
        self, extras: Iterable[str], *command: str, without: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment where only `blockdraft[extras]` is installed.

        One distribution may be missing all the same.
        """
        folder = self._provide(frozenset(extras), without)
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )

    def _provide(self, extras: frozenset[str], without: str | None) -> Path:
        """Link what `blockdraft[extras]` declares to need, out of the environment of the tests."""
        name = "-".join(sorted(extras)) or "none"
        folder = self.dependencies / (name if without is None else f"{name}-without-{without}")
        if not folder.exists():
            folder.mkdir(parents=True)
            [project] = importlib.metadata.distributions(
                name=PROJECT, path=[str(self.site_packages)]
            )
            for distribution in needed(project, extras):
                if distribution.name == without:
                    continue
                tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
                for top in tops:
                    if not (folder / top).exists():
                        (folder / top).symlink_to(str(distribution.locate_file(top)))
        return folder


def needed(
    project: importlib.metadata.Distribution, extras: frozenset[str]
) -> list[importlib.metadata.Distribution]:
    """Return what a distribution with these extras requires, directly or not, once each."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [(project, extras)]
    while pending:
        distribution, wanted = pending.pop()
        for line in distribution.requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": e}) for e in ("", *wanted)):
                continue
            name, its_extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if (name, its_extras) in seen:
                continue
            seen.add((name, its_extras))
            # The project's extras name one another; its metadata are those of the wheel.
            required = project if name == PROJECT else importlib.metadata.distribution(name)
            pending.append((required, its_extras))
            if required is not project:
                found[name] = required
    return list(found.values())
