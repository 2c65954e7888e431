"""`deploy/try-local.sh` as it is, with a target of a few kilobytes and for some seconds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.deploy.pod import SMALL, write_target
from tests.deploy.tools import DASHBOARDS, DEPLOY, ROOT, tool
from tests.ports import free_ports

pytestmark = pytest.mark.deploy
SECONDS = 25
# On TPU, with TLS, with failures: what some panels show does not happen here.
LEAST_SHARE = 0.7


def test_it_serves_asks_draws_and_stops(tmp_path: Path) -> None:
    folder = tmp_path / "drawn"
    flags = [f"--{name.lower().replace('_', '-')}={value}" for name, value in SMALL.items()]
    flags += [f"--target={write_target(tmp_path)}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{tool('prometheus').parent}:{os.environ['PATH']}",
        "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests"),
        "TRY_LOCAL_PORT": str(free_ports(5)),
    }
    command = ["sh", str(DEPLOY / "try-local.sh"), str(folder), str(SECONDS), *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    logs = "".join(path.read_text() for path in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs[-5000:]
    drawn = re.findall(r"(\w+)\.png: (\d+) of (\d+) panels have data", done.stdout)
    assert {name for name, _, _ in drawn} == set(DASHBOARDS)
    for name, filled, panels in drawn:
        assert (folder / f"{name}.png").stat().st_size > 10_000
        if name != "learning":  # nothing is learned
            assert int(filled) >= LEAST_SHARE * int(panels), done.stdout
    # In order, and without anything that was killed or left behind.
    assert re.search(r"stopped within \d+ s", done.stdout)
    said = (folder / "serve.log").read_text()
    places = [said.index(f"stopping {role}") for role in ("server", "verifier", "drafter")]
    assert places == sorted(places)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info)]
