"""What a newcomer gets wrong is said at once, in a few lines, and by the exit code."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.support import tiny_decoder

MOST_LINES = 4
USAGE, FAILED = 2, 1
SERVE = ("serve", "--no-drafter")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "bad.gguf").write_bytes(os.urandom(2000))
    (folder / "empty").mkdir()
    write_hf_checkpoint(tiny_decoder(), folder / "tiny")
    (folder / "bad.toml").write_text("[serve\n")
    (folder / "unknown.toml").write_text("[serve]\nmax-sequence = 3\n")
    return folder


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Return the exit code of a command and what it printed, on both outputs."""
    done = subprocess.run(
        [sys.executable, "-m", "blockdraft", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "BLOCKDRAFT_SERVE_LISTEN": "localhost:0",  # whatever else listens at the usual port
            # To look for one takes longer than all else.
            "BLOCKDRAFT_SERVE_NO_DRAFTER": str("--drafter" not in arguments),
            "JAX_PLATFORMS": "cpu",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def beside_information(lines: list[str]) -> list[str]:
    """Return the lines that are not the log of a start."""
    return [line for line in lines if " INFO " not in line]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("", USAGE, "required: COMMAND"),
        ("server-up", USAGE, "invalid choice: 'server-up'"),
        ("serve --target bad.gguf", USAGE, "bad.gguf is not a GGUF file"),
        ("serve --target empty --no-drafter", USAGE, r"empty has no \w+.json"),
        ("serve --target no/such/folder", USAGE, "'no/such/folder' is neither a directory nor"),
        ("serve --drafter /no/such", USAGE, "'/no/such' is neither a directory nor"),
        ("serve --drafter empty", USAGE, "config.json"),
        ("serve --listen 8000", USAGE, "--listen must be host:port"),
        ("serve --listen TAKEN", USAGE, "--listen TAKEN: another process listens there"),
        ("serve --listen 192.0.2.1:8000", USAGE, "192.0.2.1:8000: Cannot assign"),
        ("serve --listen no.such.invalid:8000", USAGE, "no.such.invalid:8000: .* not known"),
        ("serve --metrics-port TAKEN_PORT", USAGE, "--metrics-port TAKEN: another process"),
        ("serve --max-sequence 4", USAGE, "did you mean --max-sequences?"),
        ("serve --config none.toml", USAGE, "none.toml .* No such file"),
        ("serve --config bad.toml", USAGE, "bad.toml"),
        ("serve --config unknown.toml", USAGE, "max-sequences"),
        ("serve --api-key-file none", USAGE, "none"),
        ("serve --production", USAGE, "--api-key-file"),
        ("serve --tls-cert none.pem --tls-key none.pem", USAGE, "none.pem"),
        ("serve --tpu-split 2+2", USAGE, "--tpu-host"),
        ("server --verifier localhost:1 --listen TAKEN", USAGE, "TAKEN"),
        ("generate hello --address localhost:1", FAILED, "localhost:1: Connection refused"),
        ("chat --address localhost:1", FAILED, "localhost:1: Connection refused"),
        ("models --address unix:/no/such.sock", FAILED, "No such file"),
        ("generate hello --temperature hot", USAGE, "--temperature"),
        (
            "serve --target tiny --drafter random --max-model-len 9000",
            USAGE,
            "more than the 512 tokens the model was made for",
        ),
        (
            "serve --target tiny --drafter random --kv-cache-memory 1KiB --max-model-len 64",
            USAGE,
            "raise --kv-cache-memory to",
        ),
        ("serve --kv-cache-memory lots", USAGE, "such as 512MiB or 4GiB, got 'lots'"),
    ],
)
def test_a_mistake_is_told_in_a_few_lines(
    folder: Path, taken: str, command: str, code: int, said: str
) -> None:
    port = taken.rpartition(":")[2]
    words = command.replace("TAKEN_PORT", port).replace("TAKEN", taken).split()
    found, lines = run(folder, *words)
    text = "\n".join(lines)
    assert re.search(said.replace("TAKEN", taken), text), text
    assert "Traceback" not in text
    assert len(beside_information(lines)) <= MOST_LINES, text
    assert found == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (" ".join(SERVE), USAGE),
        ("bench kflat", USAGE),
        ("train corpus --self-chat 1 --output a.jsonl", USAGE),
    ],
)
def test_jax_without_its_plugin(folder: Path, command: str, code: int) -> None:
    found, lines = run(folder, *command.split(), JAX_PLATFORMS="cuda")
    said = [line for line in lines if "JAX cannot use JAX_PLATFORMS=cuda" in line]
    assert len(said) == 1
    assert len(beside_information(lines)) <= MOST_LINES, lines
    assert found == code
