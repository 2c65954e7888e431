"""What the tests of whole commands share: a folder to run them in, targets, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench.support import write_target

from blockdraft_bench.engine import decoding

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny target with as many layers as a DFlash drafter takes features from."""
    path = tmp_path_factory.mktemp("target")
    write_target(path)
    return path


@pytest.fixture(scope="session")
def deep_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny target with as many layers as an EAGLE-3 drafter needs."""
    path = tmp_path_factory.mktemp("target")
    write_target(path, num_layers=7)
    return path


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
    monkeypatch.setattr(decoding, "PROMPT_STEP_TOKENS", 8)
    return tmp_path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[int, int, str], None]:
    """Check that a command ended with a code, one line that says why, and no output."""

    def check(code: int, expected: int, message: str) -> None:
        assert code == expected
        printed = capsys.readouterr()
        [line] = [each for each in printed.err.splitlines() if each.startswith("blockdraft bench")]
        assert message in line
        assert not printed.out

    return check
