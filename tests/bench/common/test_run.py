"""The course of a measurement: where results go, what is printed, how it is resumed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockdraft_bench.common import run as course
from blockdraft_bench.common.figure import grouped_bars, panels
from blockdraft_bench.common.run import Outcome, Run, run_measurement
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_bench.common.statistics import Estimate
from blockdraft_models.processor import Processor


@dataclass(frozen=True, slots=True)
class Square:
    """Key and record, and of several the report."""

    number: int
    square: Estimate


def measure(interrupt: int | None, run: Run) -> Outcome:
    """Square some numbers, one after the other; stop before one that is asked for."""
    run.identify("squares")
    store = run.store(Square, Square)
    phase = run.phase("squaring", total=3)
    keys = [Square(number, Estimate(None)) for number in range(3)]
    store.announce(keys)
    for number, key in enumerate(keys):
        if store.get(key) is None:
            if interrupt == number:
                raise KeyboardInterrupt
            store.add(key, Square(number, Estimate(float(number**2))))
        phase.advance()
    figure, [axes] = panels(1)
    grouped_bars(axes, ["a"], {"one": {"a": Estimate(2.0, (1.0, 3.0), 9)}})
    return Outcome(list(store)[-1], "# Squares\n", {"": figure, "-more": figure})


def run(output: Path | None, *, interrupt: int | None = None, json: bool = False) -> int:
    return run_measurement("squares", measure, interrupt, OutputSettings(output, json))


def test_writes_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(None) == 0
    [folder] = (tmp_path / "bench-results").iterdir()
    printed = capsys.readouterr()
    assert printed.out == (folder / "squares.md").read_text("utf-8") == "# Squares\n"
    assert f"written to bench-results/{folder.name}" in printed.err
    for name in ("squares.png", "squares-more.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    lines = (folder / "samples.jsonl").read_bytes()
    # The same measurement finds its folder again, and what is there.
    assert run(None, json=True, interrupt=0) == 0
    assert capsys.readouterr().out == (folder / "squares.json").read_text("utf-8")
    assert (folder / "samples.jsonl").read_bytes() == lines


def test_says_how_an_interrupted_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt):
        run(output, interrupt=2)
    assert f"the same with --output {output} goes on from here" in capsys.readouterr().err
    assert [path.name for path in output.iterdir()] == ["samples.jsonl"]
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 2
    assert run(output) == 0
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 3
    assert "taking over 2 of 3 results measured 20" in capsys.readouterr().err


def rename(package: Path, patch: pytest.MonkeyPatch) -> None:
    (package / "part.py").rename(package / "other.py")


def edit(package: Path, patch: pytest.MonkeyPatch) -> None:
    (package / "part.py").write_text("b = 1\n", encoding="utf-8")


def move(package: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(course, "this_processor", lambda: Processor("another", (), 2))


def upgrade(package: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(course, "versions", lambda: {"jaxlib": "another"})


@pytest.mark.parametrize("change", [edit, rename, move, upgrade])
def test_what_other_code_or_another_machine_measured_is_not_taken_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    package = tmp_path / "lib" / "blockdraft_extra"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "part.py").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    output = tmp_path / "out"
    assert run(output) == run(output) == 0
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 3
    assert "taking over 3 of 3" in capsys.readouterr().err
    change(package, monkeypatch)
    assert run(output) == 0
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 6
    assert "taking over" not in capsys.readouterr().err
