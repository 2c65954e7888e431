"""The course of a measurement: where results go, what is printed, how it is resumed."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from blockdraft_bench import run as course
from blockdraft_bench.result import Result, draw
from blockdraft_bench.run import UNCOUNTED_ROUNDS, Run, sample_in_rounds
from blockdraft_bench.settings import OutputSettings
from blockdraft_bench.statistics import Estimate
from blockdraft_models.processor import Processor


@dataclass(frozen=True, slots=True)
class Square:
    square: int


def measure(run: Run, interrupt: int | None) -> Result:
    """Square some numbers, one after the other; stop before one that is asked for."""
    run.identify("squares")
    store = run.store(Square)
    phase = run.phase("squaring", total=3)
    store.announce([(number,) for number in range(3)])
    for number in range(3):
        if store.get((number,)) is None:
            if interrupt == number:
                raise KeyboardInterrupt
            store.add((number,), Square(number**2))
        phase.advance()
    rows = [{"name": "a", "square": Estimate(2.0, (1.0, 3.0), 9)}]
    return Result({"fact": 1}, rows, "# Squares\n", draw(rows, "name", "square", []))


def run(
    output: Path | None, *flags: str, interrupt: int | None = None, as_json: bool = False
) -> None:
    with Run("squares", flags, OutputSettings(output, as_json)) as begun:
        result = measure(begun, interrupt)
    begun.publish(result)


def test_writes_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(None)
    [folder] = (tmp_path / "bench-results").iterdir()
    printed = capsys.readouterr()
    page = (folder / "squares.md").read_text("utf-8")
    assert printed.out == page
    assert page.startswith("# Squares\n\nMeasured on ")
    assert page.endswith(": `blockdraft bench squares`\n")
    assert f"written to bench-results/{folder.name}" in printed.err
    assert (folder / "squares.png").read_bytes().startswith(b"\x89PNG")
    lines = (folder / "samples.jsonl").read_bytes()
    # The same measurement finds its folder again, and what is there.
    run(None, as_json=True, interrupt=0)
    assert capsys.readouterr().out == (folder / "squares.json").read_text("utf-8")
    assert (folder / "samples.jsonl").read_bytes() == lines


def test_says_what_it_was_measured_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_SERVE_PROMPT_LOOKUP", "no")
    monkeypatch.setenv("BLOCKDRAFT_API_KEY", "hidden")
    run(tmp_path, "--number=3", "--api-key=hidden")
    text = (tmp_path / "squares.json").read_text("utf-8")
    report = json.loads(text)
    assert (report["benchmark"], report["fact"]) == ("squares", 1)
    assert report["command"] == "blockdraft bench squares --number=3"
    assert report["environment"]["BLOCKDRAFT_SERVE_PROMPT_LOOKUP"] == "no"
    assert "hidden" not in text
    assert report["versions"]["jax"]
    assert set(report["hardware"]) == {"cpu", "cores", "accelerator", "instructions"}
    assert report["results"][0]["square_ci95"] == [1.0, 3.0]


def test_without_a_store_flags_tell_folders_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {Run("squares", [flag], OutputSettings()).folder for flag in ("--a", "--a", "--b")}
    assert len(folders) == 2


def test_a_run_over_midnight_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    days = itertools.count(1)
    calendar = SimpleNamespace(today=lambda: f"2026-11-0{next(days)}")
    monkeypatch.setattr(course, "datetime", SimpleNamespace(date=calendar))
    run(None)
    [folder] = (tmp_path / "bench-results").iterdir()
    assert {file.name for file in folder.iterdir()} >= {"samples.jsonl", "squares.json"}


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "rename": lambda package, _: (package / "part.py").rename(package / "other.py"),
    "edit": lambda package, _: (package / "part.py").write_text("b = 1\n", encoding="utf-8"),
    "move": lambda _, patch: patch.setattr(
        course, "this_processor", lambda: Processor("another", (), 2)
    ),
    "upgrade": lambda _, patch: patch.setattr(course, "versions", lambda: {"jaxlib": "another"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_other_code_or_another_machine_measured_is_not_taken_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: str,
) -> None:
    package = tmp_path / "lib" / "blockdraft_extra"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "part.py").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    output = tmp_path / "out"
    run(output)
    run(output)
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 3
    assert "taking over 3 of 3" in capsys.readouterr().err
    CHANGES[change](package, monkeypatch)
    run(output)
    assert len((output / "samples.jsonl").read_bytes().splitlines()) == 6
    assert "taking over" not in capsys.readouterr().err


def test_every_point_has_its_turn_in_every_round() -> None:
    order: list[str] = []

    def measure(name: str) -> Callable[[], int]:
        def sample() -> int:
            order.append(name)
            return order.count(name)

        return sample

    names = "abcde"
    taken: list[None] = []
    samples = sample_in_rounds(
        {name: measure(name) for name in names}, 6, lambda: taken.append(None)
    )
    # The first rounds are not among the samples.
    expected = list(range(UNCOUNTED_ROUNDS + 1, UNCOUNTED_ROUNDS + 7))
    assert samples == {name: expected for name in names}
    assert len(taken) == len(order) == len(names) * (UNCOUNTED_ROUNDS + 6)
    rounds = ["".join(order[i : i + 5]) for i in range(0, len(order), 5)]
    assert all(sorted(each) == list(names) for each in rounds)
    assert len(set(rounds)) > 1
