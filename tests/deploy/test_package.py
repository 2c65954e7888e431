"""Whether PyPI would take what is built from the tree."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.tools import ROOT, run

pytestmark = pytest.mark.deploy


def test_metadata_and_readme_are_what_pypi_takes(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    built = sorted(tmp_path.iterdir())
    assert [path.suffix for path in built] == [".whl", ".gz"]
    assert run("twine", "check", "--strict", *built).count("PASSED") == 2
