"""What the tests of whole commands share: a folder to run them in, with small data sets."""

import json
from pathlib import Path

import pytest

from blockdraft_bench.engine import loading

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jax_as_it_was: None) -> Path:
    """Run in a folder with `gsm8k.jsonl` and `mbpp.jsonl`; leave jax as it was."""
    for name in ("gsm8k", "mbpp"):
        rows = [{"id": f"{name}/{i}", "turns": [f"{name} number {i}?"]} for i in range(6)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(CACHE))
    monkeypatch.setenv("BLOCKDRAFT_DATASETS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # Fewer shapes to compile.
    monkeypatch.setattr(loading, "PROMPT_STEP_TOKENS", 16)
    return tmp_path
