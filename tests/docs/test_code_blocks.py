"""What the pages tell readers to type works, against a server whose answers are known."""

import argparse
import importlib
import json
import re
import shlex
from collections.abc import Iterator

import pytest
from google.protobuf import json_format
from tests.docs.pages import ROOT, Block, blocks, read
from tests.fakes.inference import RunningFake, running_fake

from blockdraft_client.cli.main import COMMANDS
from blockdraft_protos.v1 import inference_pb2


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningFake]:
    for name in ("ADDRESS", "TARGET", "API_KEY", "CA_CERT"):
        monkeypatch.delenv(f"BLOCKDRAFT_{name}", raising=False)
    with running_fake() as running:
        yield running


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs(block: Block, fake: RunningFake) -> None:
    text = block.text.replace("localhost:50051", fake.target)
    assert fake.target in text
    exec(compile(text, str(block), "exec"), {"__name__": "__main__"})
    assert fake.service.calls


def commands() -> list[list[str]]:
    """Return every command line in the pages' shell blocks, in words."""
    lines = [
        line for block in blocks("sh") for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(line) for line in lines if line.strip()]


def test_blockdraft_commands_parse() -> None:
    seen = set()
    for name, *arguments in commands():
        if name != "blockdraft":
            continue
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(COMMANDS[arguments[0]].module).add_arguments(parser)
        parser.parse_args(arguments[1:])
        seen.add(arguments[0])
    assert {"serve", "generate", "bench"} <= seen


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    used = {line[1] for line in commands() if line[0] == "make"}
    used |= set(re.findall(r"`make ([a-z-]+)", read("README.md") + read("CONTRIBUTING.md")))
    assert used
    assert used <= targets


def test_buf_curl_sends_a_request_of_its_method() -> None:
    [line] = [words for words in commands() if words[0] == "buf"]
    address, service, method = line[-1].rsplit("/", 2)
    assert address == "http://127.0.0.1:50051"
    descriptor = inference_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    assert descriptor.full_name == service
    request = getattr(inference_pb2, descriptor.methods_by_name[method].input_type.name)()
    json_format.ParseDict(json.loads(line[line.index("-d") + 1]), request)
    assert request.prompt.WhichOneof("content") == "conversation"
