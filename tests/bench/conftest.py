"""What the tests of whole commands share: a folder to run them in, targets, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import write_target
from tests.patience import PATIENCE_SECONDS

from blockdraft_bench import settings
from blockdraft_client.cli.main import main

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny target, of few layers to compile."""
    path = tmp_path_factory.mktemp("target")
    write_target(path)
    return path


@pytest.fixture
def workplace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jax_as_it_was: None,
    target: Path,
) -> Path:
    """Run in a folder with the target, `gsm8k.jsonl` and `mbpp.jsonl`; leave jax as it was."""
    (tmp_path / "target").symlink_to(target)
    for name in ("gsm8k", "mbpp"):
        rows = [{"id": f"{name}/{i}", "turns": [f"{name} number {i}?"]} for i in range(6)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(CACHE))
    monkeypatch.setenv("BLOCKDRAFT_DATASETS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # Fewer shapes to compile.
    monkeypatch.setattr(settings, "STEP_TOKENS", 16)
    # No step goes on without its draft because the machine stood still for a moment.
    monkeypatch.setenv("BLOCKDRAFT_SERVE_DRAFT_PATIENCE", str(PATIENCE_SECONDS))
    return tmp_path


@pytest.fixture
def bench(request: pytest.FixtureRequest, workplace: Path) -> Callable[..., int]:
    """Run the command of the test's module with what makes it small, and these arguments."""
    return lambda *arguments: main(["bench", *request.module.SMALL.split(), *arguments])


@pytest.fixture
def reported(
    bench: Callable[..., int],
    request: pytest.FixtureRequest,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[dict[str, Any], Path]]:
    """Run it with `--json`; return the report and the folder that it lies in with the others."""

    def call(*arguments: str) -> tuple[dict[str, Any], Path]:
        name = request.module.SMALL.split()[0]
        assert bench(*arguments, "--json") == 0
        printed = capsys.readouterr()
        report = json.loads(printed.out)
        [folder] = (workplace / "bench-results").iterdir()
        assert f"written to bench-results/{folder.name}" in printed.err
        assert folder.name.startswith(f"{name}-")
        assert report["benchmark"] == name
        assert json.loads((folder / f"{name}.json").read_text("utf-8")) == report
        assert (folder / f"{name}.md").exists()
        if name != "link":
            assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        return report, folder

    return call


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
