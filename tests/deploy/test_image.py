"""What the images are made of. None is built here: that takes a Docker engine and a registry."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.deploy.tools import DEPLOY, ROOT, run

pytestmark = pytest.mark.deploy
DOCKER = DEPLOY / "docker"
LOCKS = tuple(sorted(path.name for path in DOCKER.glob("lock-*.txt")))


def pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.M)
    return {canonicalize_name(name): version for name, version in found}


def project() -> dict[str, list[str]]:
    """Return what an extra, or the build itself, requires."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    base, extras = table["project"]["dependencies"], table["project"]["optional-dependencies"]
    serve = [*base, *extras["serve"], *own(extras["train"])]
    return {
        "lock-build.txt": table["build-system"]["requires"],
        "lock-cpu.txt": serve,
        "lock-tpu.txt": [*serve, *own(extras["tpu"])],
    }


def own(requirements: list[str]) -> list[str]:
    """Return an extra without the extras that it is made of."""
    return [one for one in requirements if not one.startswith("blockdraft[")]


def test_the_dockerfile_is_clean() -> None:
    run("hadolint", DOCKER / "Dockerfile")


def test_the_compose_file_fits_its_schema() -> None:
    check = Path(sys.executable).parent / "check-jsonschema"
    command = [str(check), "-qq", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(DOCKER / "compose.yaml")], check=True)


@pytest.mark.parametrize(
    "script",
    sorted([*DEPLOY.rglob("*.sh"), *Path(__file__).parent.glob("*.sh")]),
    ids=lambda path: path.name,
)
def test_scripts_are_clean(script: Path) -> None:
    run("shellcheck", script)


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_what_is_required_at_the_versions_that_are_tested(name: str) -> None:
    locked, tested = pins(DOCKER / name), pins(ROOT / "constraints.txt")
    assert locked.items() <= tested.items()
    for requirement in map(Requirement, project()[name]):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", LOCKS)
def test_locks_pin_every_package_by_hash(name: str) -> None:
    text = (DOCKER / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(pins(DOCKER / name))
    assert all("--hash=sha256:" in line for line in lines)


def test_only_the_accelerator_library_tells_the_variants_apart() -> None:
    more = pins(DOCKER / "lock-tpu.txt").items() - pins(DOCKER / "lock-cpu.txt").items()
    assert {name for name, _ in more} == {"libtpu"}
    assert pins(DOCKER / "lock-cpu.txt").items() <= pins(DOCKER / "lock-tpu.txt").items()


def test_what_the_wheel_is_made_of_reaches_the_builder() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = [f"deploy/docker/{name}" for name in LOCKS]
    for path in [*packages, *copied, "pyproject.toml", table["project"]["readme"], "LICENSE"]:
        assert any(fnmatch.fnmatch(path, one) or path.startswith(f"{one}/") for one in let_in), path
    assert not any(one.startswith(("tests", "docs", ".")) for one in let_in)
