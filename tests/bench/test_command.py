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
        # Those of prompts are the same of all that have them.
        ("decode", ("--dataset", "gsm9k"), 2, "'gsm9k' is neither a .jsonl file nor one of math"),
        ("serve", ("--dataset", "aime24"), 2, "has no aime24.jsonl: --datasets-dir names"),
        ("acceptance", ("--dataset", "none.jsonl"), 2, "the dataset none.jsonl does not exist"),
        ("peers", ("--dataset", "gsm8k"), 2, "datasets need different names"),
        ("acceptance", ("--samples", "0"), 2, "--samples must be at least 1, got 0"),
        ("serve", ("--max-tokens", "0"), 2, "--max-tokens must be at least 1, got 0"),
        ("decode", ("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        ("peers", ("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        ("decode", ("--max-prompt-tokens", "5"), 2, "cannot hold the chat template"),
        ("decode", ("--target", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("acceptance", ("--temperature", "-1"), 2, "--temperature must be at least 0, got -1"),
        ("acceptance", ("--temperature", "1", "1"), 2, "--temperature has the same value twice"),
        ("acceptance", ("--drafter", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("decode", ("--block-size", "1"), 2, "--block-size must be at least 2"),
        ("decode", ("--draft-length", "0"), 2, "--draft-length must be at least 1, got 0"),
        ("decode", ("--temperature", "-1"), 2, "--temperature must be at least 0, got -1"),
        ("decode", ("--temperature", "1", "1"), 2, "--temperature has the same value twice"),
        ("decode", ("--method", "dflash", "dflash"), 2, "--method has the same value twice"),
        (
            "decode",
            ("--method", "medusa"),
            2,
            "--method must be plain, dflash, eagle3, prompt-lookup, dflash+prompt-lookup or "
            "eagle3+prompt-lookup, got",
        ),
        ("decode", ("--dflash", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("decode", ("--eagle3", "nowhere"), 2, "'nowhere' is neither a directory"),
        ("decode", ("--method", "eagle3"), 2, "no EAGLE-3 drafter is shipped for target"),
        (
            "decode",
            ("--dflash", "random-eagle3"),
            2,
            "--dflash random-eagle3 is a drafter of the method eagle3",
        ),
        ("kflat", ("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        ("kflat", ("--runs", "-1"), 2, "--runs must be at least 0"),
        ("kflat", ("--runs", "0"), 2, "--runs 0 measures nothing; say --topology"),
        ("kflat", ("--batch", "3"), 2, "--batch must be powers of two up to --max-tokens (8), got"),
        ("kflat", ("--batch", "16"), 2, "--batch must be powers of two up to --max-tokens (8), go"),
        ("kflat", ("--batch", "1", "1"), 2, "--batch has the same value twice"),
        ("kflat", ("--context-tokens", "-1"), 2, "--context-tokens must be at least 0, got -1"),
        ("kflat", ("--model-shape", "gpt"), 2, "--model-shape must be of target, llama"),
        ("link", ("--sequences", "0"), 2, "--sequences must be at least 1"),
        ("link", ("--width", "0"), 2, "--width must be at least 1"),
        ("link", ("--runs", "0"), 2, "--runs must be at least 1"),
        ("link", ("--transport", "pigeon"), 2, "--transport must be shared-memory, unix or tcp"),
        ("peers", ("--rounds", "0"), 2, "--rounds must be at least 1, got 0"),
        ("peers", (), 2, "llama.cpp reads only .gguf files, which target"),
        (
            "peers",
            ("--peer", "transformers", "--drafter", "nowhere"),
            2,
            "'nowhere' is neither a directory",
        ),
        ("processor", ("--cores", "0"), 2, "--cores must be at least 1, got 0"),
        ("processor", ("--cores", "1", "9999"), 2, "--cores must be at most "),
        ("serve", ("--concurrency", "1", "0"), 2, "--concurrency must be at least 1, got 0"),
        ("serve", ("--concurrency", "2", "2"), 2, "--concurrency has the same value twice"),
        ("serve", ("--requests", "7"), 2, "--requests 7 cannot keep 8 in flight"),
        ("serve", ("--rate", "0"), 2, "--rate must be above 0"),
        ("serve", ("--rate", "inf"), 2, "--rate must be a number, got 'inf'"),
        ("serve", ("--method", "plain", "plain"), 2, "--method has the same value twice"),
        ("serve", ("--method", "fast"), 2, "--method must be drafted, plain or learning, got 'fa"),
        ("serve", ("--requests", "0"), 2, "--requests must be at least 1"),
        ("serve", ("--warm-up", "-1"), 2, "--warm-up must be at least 0"),
        ("serve", ("--flush-tokens", "-1"), 2, "--flush-tokens must be at least 0"),
        ("serve", ("--timeout-seconds", "nan"), 2, "--timeout-seconds must be a number"),
        ("serve", ("--slo-ttft-seconds", "0"), 2, "--slo-ttft-seconds must be above 0"),
        ("serve", ("--slo-tpot-seconds", "-1"), 2, "--slo-tpot-seconds must be above 0"),
        ("serve", ("--temperature", "-1"), 2, "--temperature must be at least 0"),
        ("serve", ("--method", "learning", "--no-drafter"), 2, "--no-drafter leaves none"),
        ("serve", ("--method", "learning", "--address", "x:1"), 2, "a trainer that it started"),
        ("serve", ("--max-sequences", "0"), 2, "--max-sequences must be at least 1"),
        ("report", ("nowhere",), 2, "nowhere does not exist"),
    ],
)
def test_says_what_is_wrong(
    deep_target: Path,
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
        "acceptance": [*datasets, "--drafter", "random"],
        "decode": [*datasets, "--dflash", "random"],
        "kflat": ["--max-tokens", "8"],
        "peers": [*datasets, "--drafter", "random"],
        "serve": [*datasets, "--drafter", "random"],
    }.get(command, [])
    if command not in ("link", "report"):
        small += ["--target", str(deep_target)]
    assert command == "report" or not any(workplace.glob("bench-results"))
    refused(main(["bench", command, *small, *arguments]), code, message)
    assert not any(workplace.glob("bench-results"))
