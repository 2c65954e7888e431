"""The programs that check `deploy/`, which `make test-deploy` installs apart from the project."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = tuple(sorted(path.name for path in (DEPLOY / "k8s" / "overlays").iterdir()))
COMPONENTS = tuple(sorted(path.name for path in (DEPLOY / "k8s" / "components").iterdir()))
_BIN = Path(os.environ.get("BLOCKDRAFT_DEPLOY_TOOLS", ROOT / ".venv" / "deploy" / "bin"))

Manifest = dict[str, Any]


def tool(program: str) -> Path:
    """Return where a program is.

    The test is skipped if it is one of Prometheus's, which not every machine can have.
    """
    path = _BIN / program
    if program in ("prometheus", "promtool") and not path.exists():
        pytest.skip(f"{path} is not there: apt could not fetch Debian's package prometheus")
    return path


def run(program: str, *arguments: str | Path, stdin: str | None = None) -> str:
    """Run a program, from the root; return what it printed. A failure fails the test.

    Args:
        program: Its name, see `tool`.
        arguments: Its command line.
        stdin: What it shall read.
    """
    done = subprocess.run(
        [str(tool(program)), *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
    return done.stdout
