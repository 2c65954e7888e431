"""`blockdraft bench peers` on a tiny target, from the command line to the files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import write_fake_peer

from blockdraft_bench.peers import decoders

SMALL = (
    "peers --target target --drafter random --dataset gsm8k --max-prompt-tokens 64"
    " --max-tokens 13 --samples 2 --peer transformers --dtype float32"
)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have programs in place of the peers that answer at once."""
    write_fake_peer(tmp_path / "bin" / "python")
    monkeypatch.setattr(decoders, "fetch", lambda peer: tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("fetched")
def test_every_round_measures_every_decoder(
    bench: Callable[..., int],
    reported: Callable[..., tuple[dict[str, Any], Path]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    report, output = reported("--rounds", "3")
    assert (report["prompts"], report["rounds"]) == (2, 3)
    assert report["threads"] == report["hardware"]["cores"]
    assert report["target"]["name"].startswith("target")
    assert report["peer_versions"] == {"fake": "1.0"}
    rows = report["results"]
    assert {row["dtype"] for row in rows} == {"float32"}
    assert [row["decoder"] for row in rows] == [
        "blockdraft plain",
        "blockdraft drafted",
        "transformers generate",
        "transformers prompt_lookup",
    ]
    plain, drafted, generate, prompt_lookup = rows
    assert plain["plain_ratio"] == drafted["drafted_ratio"] == {
        "median": 1.0, "quartiles": [1.0, 1.0]
    }  # fmt: skip
    assert plain["identical_share"] == drafted["identical_share"] == 1.0
    for row in (generate, prompt_lookup):
        # 13 tokens, two of them first, the others in 3 s.
        assert row["tokens"] == 3 * 2 * 13
        assert row["tokens_per_second"]["median"] == pytest.approx(11 / 3)
        speed = plain["tokens_per_second"]["median"]
        assert row["plain_ratio"]["median"] == pytest.approx(speed / (11 / 3))
        assert row["identical_share"] == 0.0

    # Again, as a table, with a round more: only that one is decoded.
    completions = [(output / f"round-{n}.jsonl").read_bytes() for n in (1, 2, 3)]
    assert [len(each.splitlines()) for each in completions] == [2, 2, 2]
    assert bench("--rounds", "4", "--output", str(output)) == 0
    assert [(output / f"round-{n}.jsonl").read_bytes() for n in (1, 2, 3)] == completions
    assert len((output / "round-4.jsonl").read_bytes().splitlines()) == 2
    table, said = capsys.readouterr()
    assert said.count("taking over 2 of 2 results measured") == 3
    assert (output / "peers.md").read_text("utf-8") == table
    assert "| transformers prompt_lookup | float32 | 3.7 (3.7 to 3.7) |" in table
