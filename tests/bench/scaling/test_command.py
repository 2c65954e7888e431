"""`blockdraft bench scaling` on files made here, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.support import check_refusal

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.acceptance.report import AcceptanceReport
from blockdraft_bench.acceptance.statistics import summarize
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.provenance import Drafter, Hardware, Origin, Target
from blockdraft_bench.common.record import to_json
from blockdraft_bench.kflat.curve import Timing, steps_of
from blockdraft_bench.kflat.decoder_cost import StepCost
from blockdraft_bench.kflat.report import CurveName, KFlatReport, StepTime
from blockdraft_client.cli.main import main

Run = Callable[..., int]
FIRST, RATE = 0.8, 0.9
ORIGIN = Origin(
    command="a command", commit=None, versions={}, hardware=Hardware("a processor", 2, None)
)
TARGET = Target("0123456789abcdef", "tiny")


def acceptance_report(drafted: int, seed: int, answers: int = 12) -> AcceptanceReport:
    """Return what `bench acceptance` writes of a drafter that decays as said."""
    rng = np.random.default_rng(seed)
    chances = FIRST * RATE ** np.arange(drafted)

    def answer() -> Answer:
        lucky = rng.random((25, drafted)) < chances
        accepted = np.cumprod(lucky, axis=1).sum(axis=1)
        return Answer((1,), tuple((drafted, int(count)) for count in accepted), False)

    results = []
    for name, temperature in (("gsm8k", 0.0), ("mbpp", 0.0), ("gsm8k", 1.0)):
        made = [answer() for _ in range(answers)]
        results.append(summarize(name, temperature, made, made, draft_length=drafted, seed=0))
    return AcceptanceReport(
        **ORIGIN,
        target=TARGET,
        drafter=Drafter("dflash", "fedcba9876543210", True),
        block_size=drafted + 1,
        draft_length=drafted,
        max_tokens=1,
        max_prompt_tokens=1,
        seed=0,
        results=tuple(results),
    )


def kflat_report(*seconds: float) -> KFlatReport:
    """Return one measured and one modelled curve over steps of 1, 2, 4, ... tokens."""
    roofline = Roofline(1.0, 1.0, "measured")
    steps: list[StepTime] = []
    for device, times in (("a CPU", seconds), ("a TPU", [1.0] * len(seconds))):
        name = CurveName(
            device=device, model="tiny", modelled=device == "a TPU", batch=1, context_tokens=128
        )
        cost = StepCost(1.0, 1.0)
        timings = {1 << power: (Timing(time), cost) for power, time in enumerate(times)}
        steps += steps_of(name, timings, roofline)
    return KFlatReport(
        **ORIGIN,
        target=TARGET,
        dtype="auto",
        max_tokens=1 << max(1, len(seconds) - 1),
        context_tokens=(128,),
        batch=(1,),
        runs=1,
        tolerance=0.1,
        topology=("a TPU",),
        model_shape=("target",),
        modelled_note=None,
        curves=(),
        results=tuple(steps),
    )


def write(path: Path, report: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(report if isinstance(report, str) else to_json(report), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        "eight": write(tmp_path / "eight" / "acceptance.json", acceptance_report(7, 1)),
        "sixteen": write(tmp_path / "sixteen" / "acceptance.json", acceptance_report(15, 2)),
        "kflat": write(tmp_path / "kflat.json", kflat_report(1.0, 1.0, 1.1, 1.4, 3.0, 6.0)),
    }


@pytest.fixture
def bench(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        given = ["--acceptance", str(files["eight"]), "--kflat", str(files["kflat"])]
        return main(["bench", "scaling", *given, *arguments])

    return call


def test_predicts_and_reports(
    bench: Run, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--measured", str(files["sixteen"]), "--draft-seconds", "0.1", "--json")
    assert bench(*arguments) == 0
    report = json.loads(capsys.readouterr().out)
    [output] = (tmp_path / "bench-results").iterdir()
    assert json.loads((output / "scaling.json").read_text("utf-8")) == report
    assert (output / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "Fitted on 600 verifications of blocks of 8" in (output / "scaling.md").read_text(
        "utf-8"
    )

    fit = report["fit"]
    assert fit["verifications"] == 2 * 12 * 25
    assert fit["acceptance"] == pytest.approx(FIRST, abs=0.06)
    assert fit["decay"] == pytest.approx(RATE, abs=0.06)
    assert fit["acceptance_ci95"][0] < fit["acceptance"] < fit["acceptance_ci95"][1]
    assert (fit["acceptance_answers"], fit["decay_answers"]) == (24, 24)
    assert len(fit["per_position"]) == 7

    lengths = {length["block_size"]: length for length in report["acceptance_lengths"]}
    assert list(lengths) == [4, 8, 16, 32]
    assert [length["extrapolated"] for length in lengths.values()] == [False, False, True, True]
    counts = np.concatenate(
        [
            row["reach_counts"]
            for row in json.loads(files["eight"].read_text("utf-8"))["results"]
            if row["temperature"] == 0.0
        ]
    ).sum(axis=0)
    [cut] = lengths[4]["measured"]
    assert cut["cut_short"] is True
    assert cut["acceptance_length"] == pytest.approx(counts[:4].sum() / counts[0])
    [other] = lengths[16]["measured"]
    assert (other["source"], other["cut_short"]) == ("sixteen/acceptance.json", False)
    # Never seen by the fit, and predicted by it.
    assert lengths[16]["acceptance_length"] == pytest.approx(other["acceptance_length"], abs=0.5)

    measured, modelled = report["results"]
    assert (measured["device"], measured["modelled"]) == ("a CPU", False)
    assert (modelled["device"], modelled["modelled"]) == ("a TPU", True)
    eight = measured["predictions"][1]
    assert eight["verify_seconds"] == pytest.approx(1.4)
    assert eight["speed_up"] == pytest.approx(lengths[8]["acceptance_length"] / 1.5)
    assert measured["best_block_size"] in (4, 8)
    assert modelled["best_block_size"] == 32
    traded = measured["exchange"]
    assert traded["block_size"] == 8
    assert traded["doubling"]["speed_up"] == pytest.approx(
        lengths[16]["acceptance_length"] / 3.1 - eight["speed_up"]
    )
    assert measured["conclusion"].endswith("longer blocks do not pay, better drafts do.")
    # Free to verify, yet hardly ever reached: τ(16) - τ(8) is 0.02, a point adds 0.06.
    assert modelled["conclusion"].endswith("a single point is worth more than doubling.")


def test_files_without_counts_of_answers_have_no_intervals(
    bench: Run, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--json") == 0
    with_counts = json.loads(capsys.readouterr().out)["fit"]
    report = json.loads(files["eight"].read_text("utf-8"))
    for row in report["results"]:
        del row["reach_counts"]
    write(files["eight"], json.dumps(report))
    assert bench("--json") == 0
    without = json.loads(capsys.readouterr().out)["fit"]
    # The shares hold the same counts.
    assert without["per_position"] == with_counts["per_position"]
    assert without["acceptance"] == with_counts["acceptance"]
    assert (without["acceptance_ci95"], without["decay_ci95"]) == (None, None)


def test_pools_the_datasets_asked_for(bench: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--dataset", "mbpp") == 0
    assert "Fitted on 300 verifications of blocks of 8 (mbpp, temp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "--temperature must be at least 0, got -1"),
        (("--temperature", "0.5"), "has no results at temperature 0.5"),
        (("--dataset", "humaneval"), "has no humaneval at temperature 0"),
        (("--draft-seconds", "-1"), "--draft-seconds must be at least 0, got -1"),
        (("--overhead-seconds", "nan"), "--overhead-seconds must be a number, got 'nan'"),
        (("--batch", "0"), "--batch must be at least 1"),
        (("--batch", "4"), "has no results for batch 4"),
        (("--acceptance", "none.json"), "none.json cannot be read: No such file"),
        (("--kflat", "eight/acceptance.json"), "is no kflat.json: Invalid enum value 'acceptance'"),
        (
            ("--acceptance", "kflat.json"),
            "no acceptance.json: Invalid enum value 'kflat'",
        ),
    ],
)
def test_says_what_is_wrong(
    bench: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    check_refusal(capsys, (bench(*arguments), 2), message)


def rising(report: dict[str, Any]) -> None:
    report["results"][0]["reach_counts"][0][1] = 99


def short(report: dict[str, Any]) -> None:
    report["results"][0]["reach_counts"][0].pop()


def shapeless(report: dict[str, Any]) -> None:
    report["results"] = 3


def nameless(report: dict[str, Any]) -> None:
    del report["drafter"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rising, "counts must not be negative, nor rise along the block"),
        (short, "counts must be 8 integers in each row"),
        (shapeless, "is no acceptance.json: Expected `array`, got `int` - at `$.results`"),
        (nameless, "is no acceptance.json: Object missing required field `drafter`"),
    ],
)
def test_refuses_damaged_acceptance(
    bench: Run,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    report = json.loads(to_json(acceptance_report(7, 1, answers=2)))
    damage(report)
    write(files["eight"], json.dumps(report))
    check_refusal(capsys, (bench(), 2), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no kflat.json: Input data was truncated"),
        ("[]", "is no kflat.json: Expected `object`, got `array`"),
        ('{"benchmark": "kflat"}', "is no kflat.json: Object missing required field"),
        (to_json(kflat_report(1.0, -1.0)), "tokens and seconds must be positive numbers"),
        (
            to_json(kflat_report(1.0)).replace('"seconds": 1.0', '"seconds": "1"'),
            "Expected `float`, got `str` - at `$.results[0].seconds`",
        ),
    ],
)
def test_refuses_damaged_costs(
    bench: Run,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    write(files["kflat"], text)
    check_refusal(capsys, (bench(), 2), message)
