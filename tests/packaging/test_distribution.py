"""What is published: the whole tree as sdist, a wheel built from it, and how that installs."""

import importlib
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from tests.packaging.environments import Installation

from blockdraft_client.cli.main import COMMANDS

# Each waits for a build or an installation.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# What has to be installed for the modules of a package, where that is not the base alone.
EXTRA_OF_PACKAGE = {
    "blockdraft": None,
    "blockdraft_client": None,
    "blockdraft_protos": None,
    "blockdraft_training": "train",
    "blockdraft_bench": "bench",
}
# What `blockdraft bench peers` compares with, and fetches for itself.
PEERS = {"torch", "transformers"}
# Imports every module of the packages and asks the commands for help, up to the first that fails.
TRY_ALL = f"""
import importlib, pkgutil, sys
from blockdraft_client.cli.main import main
packages, commands = (words.split(",") for words in sys.argv[1:])
for name in packages:
    package = importlib.import_module(name)
    assert package.__file__.startswith(sys.prefix), package.__file__
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        try:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in {PEERS}:
                raise
for command in commands:
    assert main([*command.split(), "--help"]) == 0, command
"""


@dataclass(frozen=True, slots=True)
class Built:
    """An sdist and the wheel that was built from it."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    # Without --sdist or --wheel it builds the wheel from the sdist, not from the tree.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installation(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation.of(built.wheel, tmp_path_factory.mktemp("installed"))


def packages() -> list[Path]:
    """Return the folders of the project's packages, as they are on disk."""
    return sorted(path.parent for path in ROOT.glob("*/blockdraft*/__init__.py"))


def test_sdist_holds_every_file_under_version_control(built: Built) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git repository")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    with tarfile.open(built.sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked - held == set()


def test_wheel_holds_every_file_of_the_packages(built: Built) -> None:
    on_disk = {
        path.relative_to(package.parent).as_posix()
        for package in packages()
        for path in package.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    with zipfile.ZipFile(built.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == on_disk
    assert {f"{package.name}/py.typed" for package in packages()} <= held
    drafters = [name for name in held if name.endswith("/model.safetensors")]
    assert len(drafters) == 2


def test_metadata_is_what_pypi_takes(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        # Raises for what PyPI would refuse; hatchling refuses classifiers that do not exist.
        metadata = Metadata.from_email(archive.read(name))
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_files == ["LICENSE"]


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(listed) == [path.relative_to(ROOT).as_posix() for path in packages()]


def subcommands(module: str) -> list[str]:
    """Return the commands of a command; none for most."""
    command = importlib.import_module(module)
    measurements = [each.name for each in getattr(command, "MEASUREMENTS", ())]
    return [*getattr(command, "SUBCOMMANDS", ()), *measurements]


@pytest.mark.parametrize("extra", [None, "serve", "train", "bench"])
def test_an_extra_declares_what_its_packages_and_commands_need(
    installation: Installation, extra: str | None
) -> None:
    names = [path.name for path in packages()]
    names = [name for name in names if EXTRA_OF_PACKAGE.get(name, "serve") == extra]
    commands = [
        words
        for name, command in COMMANDS.items()
        # Compiling for TPUs needs libtpu too, but not before it is asked to.
        if command.extra == extra or (command.extra == "tpu" and extra == "serve")
        for words in (name, *(f"{name} {sub}" for sub in subcommands(command.module)))
    ]
    assert names
    assert commands
    assert extra in (None, "serve") or any(" " in words for words in commands)
    extras = [extra] if extra is not None else []
    done = installation.run(extras, "python", "-c", TRY_ALL, ",".join(names), ",".join(commands))
    assert done.returncode == 0, done.stderr


def test_the_installed_command_and_what_it_says_of_a_missing_extra(
    installation: Installation,
) -> None:
    shown = installation.run((), "blockdraft", "version")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("blockdraft ")
    refused = installation.run((), "blockdraft", "serve")
    assert refused.returncode == 2
    assert "pip install 'blockdraft[serve]'" in refused.stderr


def test_learning_says_in_one_line_what_it_needs(installation: Installation) -> None:
    refused = installation.run(
        ("serve",), "blockdraft", "serve", "--learn", without="orbax-checkpoint"
    )
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert "--learn needs orbax, which is not installed: pip install 'blockdraft[train]'" in line
