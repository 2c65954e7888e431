"""`blockdraft bench processor` on a tiny target, from the command line to the files."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import check_refusal, write_target

from blockdraft_bench.processor import measure
from blockdraft_bench.processor.command import ProcessorSettings
from blockdraft_client.cli.main import main
from blockdraft_models import precision
from blockdraft_models.decoder.products import SAFEST_FORM
from blockdraft_models.processor import this_processor, usable_cores
from blockdraft_verifier import self_test
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.exactness import Exactness

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_target(path)
    return path


@pytest.fixture
def settings(target: Path) -> ProcessorSettings:
    return ProcessorSettings(
        target=str(target),
        drafter="random",
        max_sequences=1,
        max_tokens=9,
        rounds=2,
        quick=True,
    )


def test_measures_in_a_process_with_fewer_cores(
    target: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--target", str(target), "--drafter", "random", "--max-sequences", "1"]
    small += ["--max-tokens", "9", "--rounds", "2", "--quick", "--cores", "1"]
    before = os.sched_getaffinity(0)
    output = workplace / "out"
    assert main(["bench", "processor", *small, "--json", "--output", str(output)]) == 0
    assert os.sched_getaffinity(0) == before
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads((output / "processor.json").read_text("utf-8")) == report
    assert report["target"]["name"] == "tiny-llama"
    [row] = report["rows"]
    assert row["processor"] == {
        **dataclasses.asdict(this_processor()),
        "instructions": list(this_processor().instructions),
        "cores": 1,
    }
    assert report["hardware"]["cores"] == usable_cores()
    assert row["drafter"]["method"] == "dflash"
    # As the environment of the tests says; the self-test is of bfloat16 all the same.
    assert row["auto"] == "float32"
    assert row["self_test"].startswith("exact in bfloat16: ")
    assert row["bfloat16_speedup"] > 0
    assert f"32x64 {SAFEST_FORM}" in row["product_forms"]
    assert row["plain_tokens_per_second"] > 0
    assert row["drafted_tokens_per_second"] > 0
    assert row["identical"] is True
    page = (output / "processor.md").read_text("utf-8")
    assert page.count("\n|") == 2


def test_measures_again_without_touching_what_is_kept(
    settings: ProcessorSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CPU_DTYPE", "bfloat16")
    (tmp_path / "xla").symlink_to(Path(os.environ["BLOCKDRAFT_CACHE"]) / "xla")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(precision, "trial_forms", lambda: (SAFEST_FORM, SAFEST_FORM))
    speedups = iter((1.25, 1.5))
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda: next(speedups))
    first = measure.measure_here(settings)
    assert (first.auto, first.bfloat16_speedup, first.identical) == ("bfloat16", 1.25, True)
    kept = (tmp_path / precision.SPEEDUP_FILE).read_bytes()
    again = measure.measure_here(dataclasses.replace(settings, again=True))
    assert again.bfloat16_speedup == 1.5
    assert (tmp_path / precision.SPEEDUP_FILE).read_bytes() == kept
    assert not Path(os.environ["BLOCKDRAFT_CACHE"]).exists()


@pytest.mark.parametrize(("quick", "span"), [(True, 8), (False, 128)])
def test_pads_steps_as_a_verifier_does(
    settings: ProcessorSettings, monkeypatch: pytest.MonkeyPatch, *, quick: bool, span: int
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CPU_DTYPE", "bfloat16")
    spans = []

    def two_classes(runner: ModelRunner, span: int) -> Exactness:
        spans.append(span)
        first, *others = runner.buckets
        return Exactness("bfloat16", ((first,), tuple(others)))

    monkeypatch.setattr(self_test, "self_test", two_classes)
    row = measure.measure_here(dataclasses.replace(settings, quick=quick, rounds=1))
    assert spans == [span]
    assert row.self_test.endswith(" step shapes round alike, 1x1 are padded")
    assert row.identical


def test_takes_no_other_device(
    settings: ProcessorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="set JAX_PLATFORMS=cpu"):
        measure.measure_here(settings)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--cores", "0"), 2, "--cores must be at least 1, got 0"),
        (("--cores", "1", "9999"), 2, "--cores must be at most "),
        (("--rounds", "0"), 2, "--rounds must be at least 1"),
        (("--max-tokens", "1"), 2, "--max-tokens must be at least 2"),
        (("--target", "nowhere"), 1, "'nowhere' is no directory"),
    ],
)
def test_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    check_refusal(capsys, (main(["bench", "processor", *arguments]), code), message)
