"""`blockdraft serve` with a drafter of another host: a `blockdraft drafter` at an address."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.certificates import Authority
from tests.e2e.test_hosted import READY_SECONDS, ROOT, answers, drafts
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports
from tests.verifier.support import tiny_decoder

from blockdraft_client import Client


@contextlib.contextmanager
def process_of(
    name: str, folder: Path, flags: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and stop it at the end; its log is in the folder."""
    command = [sys.executable, "-m", "blockdraft", name, *flags.split()]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_SECONDS)
        print((folder / f"{name}.log").read_text()[-5000:])


def certified(authority: Authority, folder: Path, name: str) -> str:
    """Write a certificate for a name; return the flags of the process that has it."""
    issued = authority.issue(name)
    files = {"cert": issued.certificate, "key": issued.key, "ca": authority.certificate}
    for kind, content in files.items():
        (folder / f"{name}.{kind}").write_bytes(content)
    return " ".join(f"--peer-tls-{kind} {folder / f'{name}.{kind}'}" for kind in files)


def test_it_drafts_and_comes_and_goes(tmp_path: Path) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path / "target")
    authority = Authority("peers")
    far, near = free_ports(2), free_ports(1)
    small = f"--target {tmp_path / 'target'} --dtype bfloat16 --max-sequences 4 --max-model-len 256"
    tls = certified(authority, tmp_path, "localhost")
    drafting = f"{small} --drafter random --listen 127.0.0.1:{far} {tls}"
    cache = {"BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests")}
    drafter = partial(process_of, "drafter", tmp_path, drafting, **cache)
    serving = f"""
        {small}
        --listen 127.0.0.1:{near} --drafter-placement localhost:{far}
        {certified(authority, tmp_path, "verifier")} --max-step-tokens 16 --draft-policy fixed
        --no-prompt-lookup --draft-patience 2 --draft-timeout {2 * PATIENCE_SECONDS}
    """
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(drafter())
        serve = stack.enter_context(process_of("serve", tmp_path, serving, **cache))
        client = stack.enter_context(Client(f"127.0.0.1:{near}", timeout=300))
        client.wait_ready(READY_SECONDS)
        until(lambda: drafts(client), seconds=READY_SECONDS)
        plain, drafted, _ = answers(client)
        assert drafted == plain
        # Its node is gone: the answers stay.
        first.kill()
        first.wait()
        assert answers(client) == (plain, plain, 0)
        with drafter():
            until(lambda: drafts(client), seconds=READY_SECONDS)
            assert answers(client)[:2] == (plain, plain)
        assert serve.poll() is None
