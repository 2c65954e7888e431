"""What every measurement refuses, and how: an exit code, one line that says why, no output."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench.support import write_fake_peer

from blockdraft_bench.peers import decoders
from blockdraft_client.cli.main import main


@pytest.mark.parametrize(
    ("command", "arguments", "code", "message"),
    [
        # Those of prompts are the same of all that have them. Ranges, choices and repetitions are
        # tried for every setting in tests/test_command_lines.py.
        ("decode", ("--dataset", "gsm9k"), 2, "'gsm9k' is neither a .jsonl file nor one of math"),
        ("serve", ("--dataset", "aime24"), 2, "has no aime24.jsonl: --datasets-dir names"),
        ("decode", ("--dataset", "none.jsonl"), 2, "the dataset none.jsonl does not exist"),
        ("peers", ("--dataset", "gsm8k"), 2, "datasets need different names"),
        ("decode", ("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        ("peers", ("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        ("decode", ("--max-prompt-tokens", "5"), 2, "cannot hold the chat template"),
        ("decode", ("--target", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("decode", ("--temperature", "-1"), 2, "--temperature must be at least 0, got -1"),
        ("decode", ("--drafter", "dflash", "dflash"), 2, "--drafter has the same value twice"),
        ("decode", ("--drafter", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("decode", ("--drafter", "eagle3"), 2, "no EAGLE-3 drafter is shipped for target"),
        ("decode", (), 2, "no drafter is known for this target"),
        ("kflat", ("--batch", "3"), 2, "--batch must be powers of two up to --max-tokens (8), got"),
        ("kflat", ("--batch", "16"), 2, "--batch must be powers of two up to --max-tokens (8), go"),
        ("link", ("--transport", "pigeon"), 2, "--transport must be shared-memory, unix or tcp"),
        ("peers", (), 2, "llama.cpp reads only .gguf files, which target"),
        (
            "peers",
            ("--peer", "transformers", "--drafter", "nowhere"),
            2,
            "'nowhere' is neither a directory",
        ),
        ("serve", ("--drafter", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("processor", ("--cores", "1", "9999"), 2, "--cores must be at most "),
        ("serve", ("--requests", "7"), 2, "--requests 7 cannot keep 8 in flight"),
        ("serve", ("--rate", "inf"), 2, "--rate must be a number, got 'inf'"),
        ("serve", ("--method", "learning", "--no-drafter"), 2, "--no-drafter leaves none"),
        ("serve", ("--method", "learning", "--address", "x:1"), 2, "a trainer that it started"),
        ("report", ("nowhere",), 2, "nowhere does not exist"),
    ],
)
def test_says_what_is_wrong(
    target: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[[int, int, str], None],
    command: str,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    write_fake_peer(workplace / "bin" / "python")
    monkeypatch.setattr(decoders, "fetch", lambda peer: workplace)
    datasets = ["--dataset", "gsm8k", "--max-prompt-tokens", "64"]
    small = {
        "decode": datasets,
        "kflat": ["--max-tokens", "8"],
        "peers": [*datasets, "--drafter", "random"],
        "serve": [*datasets, "--drafter", "random"],
    }.get(command, [])
    if command not in ("link", "report"):
        small += ["--target", str(target)]
    assert command == "report" or not any(workplace.glob("bench-results"))
    refused(main(["bench", command, *small, *arguments]), code, message)
    assert not any(workplace.glob("bench-results"))
