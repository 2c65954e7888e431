"""A running `blockdraft serve --openai` on a tiny target, and what its tests compare."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports
from tests.supervised import child_of
from tests.verifier.support import tiny_decoder

from blockdraft_client import Client, SpeculationParams
from blockdraft_models.decoder.model import Decoder

ROOT = Path(__file__).parents[2]
READY_SECONDS = 5 * PATIENCE_SECONDS
PLAIN = SpeculationParams(disabled=True)
TEXT = "How deep is the pond? Tiefe: zwölf Fuß, 深い 🦆"


@dataclass
class Service:
    """The service: `http` without `/v1`, and the address of its gRPC."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str

    def child(self, role: str) -> psutil.Process:
        return child_of(self.process.pid, role)


def answers(url: str) -> bool:
    """Whether something at a URL is ready."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


@contextlib.contextmanager
def running_service(
    directory: Path,
    api_key: str | None = None,
    target: Decoder | None = None,
    flags: str = "",
    drafter: str = "random",
    config: Mapping[str, Any] | None = None,
) -> Iterator[Service]:
    """Run the service, with its files in `directory`; gives it once a random drafter drafts.

    `config` are further keys of the target's configuration.
    """
    write_hf_checkpoint(target or tiny_decoder(), directory / "target")
    if config is not None:
        path = directory / "target" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    port = free_ports(2)
    service_address, http = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    flags = f"""{flags}
        --listen {service_address} --openai {http} --target {directory / "target"}
        --drafter {drafter}
        --dtype bfloat16 --max-sequences 4 --max-step-tokens 16 --max-model-len 256
        --draft-policy fixed --model-name tiny --drain-timeout 1
    """
    command = [sys.executable, "-m", "blockdraft", "serve", *flags.split()]
    if api_key is not None:
        (directory / "keys").write_text(f"{api_key}\n")
        command += ["--api-key-file", str(directory / "keys")]
    environment = {**os.environ, "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests")}
    log = (directory / "log").open("wb")
    process = subprocess.Popen(command, stderr=log, env=environment)
    running = Service(process, service_address, f"http://{http}")
    try:
        with Client(service_address, api_key=api_key) as client:
            client.wait_ready(READY_SECONDS)
            until(lambda: drafter != "random" or client.model().drafter is not None)
        until(lambda: answers(f"{running.http}/health"))
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_SECONDS)
        log.close()
        print((directory / "log").read_text()[-5000:])
