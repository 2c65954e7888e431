"""`blockdraft serve --drafter-placement hosted`: target and draft model in one process."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports
from tests.supervised import child_of
from tests.verifier.support import tiny_decoder

from blockdraft_client import Client, SamplingParams, SpeculationParams, UnavailableError
from blockdraft_client.cli.main import main

ROOT = Path(__file__).parents[2]
READY_SECONDS = 5 * PATIENCE_SECONDS
SAMPLINGS = (
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=7, max_tokens=24, ignore_eos=True),
)


def answers(client: Client) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int]:
    """Return tokens of plain and of drafted completions, and how many tokens were drafted."""
    plain, drafted, count = [], [], 0
    for sampling in SAMPLINGS:
        off = SpeculationParams(disabled=True)
        plain.append(tuple(client.generate("Ducks", sampling=sampling, speculation=off).token_ids))
        completion = client.generate("Ducks", sampling=sampling)
        drafted.append(tuple(completion.token_ids))
        count += completion.usage.drafted_tokens
    return plain, drafted, count


def drafts(client: Client) -> bool:
    """Return whether it drafts; it does not while its verifier starts again."""
    try:
        return answers(client)[2] > 0
    except UnavailableError:
        return False


def test_it_drafts_restarts_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path / "target")
    port = free_ports(4)
    flags = f"""
        --listen 127.0.0.1:{port + 3} --target {tmp_path / "target"} --drafter random
        --drafter-placement hosted --dtype bfloat16 --max-sequences 4 --max-step-tokens 16
        --max-model-len 256 --draft-policy fixed --no-prompt-lookup --draft-patience 2
        --draft-timeout {2 * PATIENCE_SECONDS} --metrics-port {port} --run-dir {tmp_path}
    """
    command = [sys.executable, "-m", "blockdraft", "serve", *flags.split()]
    environment = {**os.environ, "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    try:
        with Client(f"127.0.0.1:{port + 3}", timeout=300) as client:
            client.wait_ready(READY_SECONDS)
            plain, drafted, count = answers(client)
            assert drafted == plain
            assert count > 0
            # The drafter's metrics are where those of a process of its own would be.
            url = f"http://127.0.0.1:{port + 2}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
                told = response.read().decode()
            assert "blockdraft_drafter_drafted_tokens_total" in told
            assert "_created" not in told
            # The summary follows the first answers.
            words = "DFlash, block of 8, untrained, in the verifier's"
            until(lambda: words in (tmp_path / "log").read_text())
            assert main(["debug", "--run-dir", str(tmp_path)]) == 0
            print(shown := capsys.readouterr().out)
            assert "drafter: dflash:" in shown.partition("  hosts:\n")[2]
            child_of(process.pid, "hosted").kill()
            until(lambda: drafts(client), seconds=READY_SECONDS)
            assert answers(client)[:2] == (plain, plain)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(READY_SECONDS)
        print((tmp_path / "log").read_text()[-5000:])
    assert code == 0
