"""Flags of vLLM and llama.cpp, typed out of habit after our commands."""

import pytest

from blockdraft_client.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("chat --url http://localhost:8000/v1", "--url: write --address HOST, of the gRPC API"),
        ("chat -q hi", "-q: write `blockdraft generate hi`"),
        ("chat --system-prompt x", "--system-prompt: write --system x"),
        ("generate -p hi", "-p: write `blockdraft generate hi`"),
        ("generate hi -n 64", "-n: write --max-tokens 64"),
        ("generate hi -m qwen", "-m: write --model qwen"),
        ("generate hi --temp 0.5", "--temp: write --temperature 0.5"),
        ("generate hi --max_tokens 64", "did you mean --max-tokens?"),
        ("generate hi --host 10.0.0.1", "--host: write --address HOST, of the gRPC API"),
        ("generate hi --address http://localhost:8000", "an address is host:port"),
        ("run smollm2", "choose from 'generate', 'chat'"),
        ("smollm2 --port 8000", "choose from 'generate', 'chat'"),
    ],
)
def test_a_habit_of_another_program_is_answered_in_one_line(
    capsys: Capture, line: str, answer: str
) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert answer in err
