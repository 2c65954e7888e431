"""The documentation's site as `make site` builds it, in a browser: whole without a network."""

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# `make test-slow` installs them apart from the project.
INSTALLED = ROOT / ".venv" / "clients"
PAGES = ("", "architecture/", "metrics/", "models/", "configuration/", "compared/")
SECONDS = 240


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    [mermaid] = (ROOT / "build").glob("mermaid-*.js")
    gather: list[str | Path] = [ROOT / "docs" / "site.py", "--mermaid", mermaid, "--folder", folder]
    subprocess.run([sys.executable, *gather], check=True)
    zensical = Path(sys.executable).parent / "zensical"
    build: list[str | Path] = [
        zensical,
        "build",
        "--strict",
        "--clean",
        "-f",
        folder / "zensical.toml",
    ]
    subprocess.run(build, check=True, timeout=SECONDS)
    return folder / "site"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_pages_are_whole_without_a_network(address: str, tmp_path: Path) -> None:
    script = tmp_path / "site.mjs"
    script.write_text((HERE / "site.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(INSTALLED / "node_modules")
    done = subprocess.run(
        [INSTALLED / "bin" / "node", script, address, *PAGES],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        # Of the package that brings the browser: it has its libraries for this system only.
        env={**os.environ, "AWS_LAMBDA_JS_RUNTIME": "nodejs22.x"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) == 2 * len(PAGES)
    for page in seen:
        assert page["problems"] == []
        assert page["overflow"] <= 0
        assert re.fullmatch(r"blockdraft \d+\.\d+\.\d+", page["header"].strip())
        assert page["title"].count("blockdraft") == 1
        # One that is not drawn is not there, or flat.
        assert [height > 100 for height in page["diagrams"]] == (
            [True] if page["path"] in ("", "architecture/") else []
        )


def test_alerts_link_to_pages(site: Path) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text("utf-8")
    paths = re.findall(r'runbook_url: "{{ \$externalLabels\.blockdraft_docs }}/(.+)"', rules)
    assert len(paths) == rules.count("alert: ")
    for path in paths:
        assert (site / path / "index.html").exists(), path
