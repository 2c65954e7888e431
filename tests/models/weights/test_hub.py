"""A gated model of a hub, downloaded by the hub's own client from a server on this machine."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": 8 * b"0123456789abcdef" * 4096, "a.bin": b"no"}
RESOLVE = """
import logging
import sys
from blockdraft_models.errors import ResolveError
from blockdraft_models.weights import progress
from blockdraft_models.weights.resolve import resolve_target
logging.basicConfig(level=logging.INFO, format="%(message)s")
progress._SECONDS_BETWEEN_LINES = 0.0
try:
    print(resolve_target("org/gated"))
except ResolveError as error:
    sys.exit(str(error))
"""


class Hub(BaseHTTPRequestHandler):
    """Lists and sends the files of one model to who has the token."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.reply(401, b"", {"X-Error-Code": "GatedRepo"})
        elif "/tree/" in self.path:
            listed = [
                {"type": "file", "path": name, "size": len(content), "oid": name}
                for name, content in FILES.items()
            ]
            self.reply(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        elif self.path.startswith("/api/models/org/gated"):
            found = {"id": "org/gated", "sha": COMMIT}
            self.reply(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        else:
            name = self.path.rpartition("/")[2]
            self.reply(200, FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

    def reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            for start in range(0, len(content), 65536):
                self.wfile.write(content[start : start + 65536])
                # The client's bars look ten times a second.
                time.sleep(0.15)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def resolve(endpoint: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Resolve the hub id in a process of its own, as the client reads its variables once."""
    variables = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **environment}
    command = [sys.executable, "-c", RESOLVE]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


def test_who_has_the_token_gets_the_model_and_hears_how_far_it_is(
    endpoint: str, tmp_path: Path
) -> None:
    done = resolve(endpoint, tmp_path, HF_TOKEN="hf_right")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert "Fetching org/gated: 1 of 1 MB" in done.stderr
    assert "\r" not in done.stderr


def test_who_has_no_token_is_refused_in_one_line(endpoint: str, tmp_path: Path) -> None:
    done = resolve(endpoint, tmp_path, HF_TOKEN="hf_wrong")
    assert done.returncode == 1
    assert "cannot download 'org/gated' from the hub: 401" in done.stderr.splitlines()[-1]
