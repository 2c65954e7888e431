"""The playground of `serve --openai` in a browser, used as a person would."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.e2e.openai_service import READY_SECONDS, running_service

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# `make test-slow` installs them apart from the project.
INSTALLED = HERE.parents[1] / ".venv" / "clients"
KEY = "a-key-of-the-tests"


def test_a_person_at_the_playground(tmp_path: Path) -> None:
    # Modules are looked up from the folder of the script.
    script = tmp_path / "playground.mjs"
    script.write_text((HERE / "playground.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(INSTALLED / "node_modules")
    with running_service(tmp_path, KEY) as service:
        done = subprocess.run(
            [INSTALLED / "bin" / "node", script, service.http, KEY, *_pictures()],
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
            # Of the package that brings the browser: it has its libraries for this system only.
            env={**os.environ, "AWS_LAMBDA_JS_RUNTIME": "nodejs22.x"},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert "tiny" in found["model"]
    assert "drafter dflash" in found["model"]
    assert "all 24 tokens the same" in found["verdict"]
    assert found["plain"] == found["drafted"] == found["replayed"]
    assert "24 tokens" in found["figures"]
    # A tiny target repeats itself.
    assert {"target", "prompt_lookup"} <= set(found["sources"])
    assert found["constrained"] in ('"yes"', '"no"')
    assert found["halted"] == 4
    assert found["overflow"] <= 0


def _pictures() -> list[str]:
    """Return the folder for pictures of it, if somebody wants to look at them."""
    folder = os.environ.get("BLOCKDRAFT_PICTURES")
    return [] if folder is None else [folder]
