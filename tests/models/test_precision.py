"""The choice of `auto`: measured once on CPU by a trial, and only there."""

import logging
from pathlib import Path

import jax
import jaxlib.version
import pytest

from blockdraft_models import precision
from blockdraft_models.precision import bfloat16_speedup, serving_dtype, speedup
from blockdraft_models.processor import Processor

EPYC = Processor("EPYC", ("avx512_bf16",), 2)


class Machine:
    """A processor that computes in bfloat16 as many times as fast as `speedup` says."""

    def __init__(self) -> None:
        self.speedup, self.measurements = 1.5, 0

    def measure(self) -> float:
        self.measurements += 1
        return self.speedup


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.delenv("BLOCKDRAFT_CPU_DTYPE")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(precision, "bfloat16_speedup", machine.measure)
    monkeypatch.setattr(precision, "this_processor", lambda: EPYC)
    return machine


def in_new_process(name: str = "auto") -> str:
    """Return what a process that starts now would choose."""
    precision._kept_speedup.cache_clear()
    return serving_dtype(name).name


@pytest.mark.parametrize(
    ("speedup", "chosen"), [(0.4, "float32"), (0.949, "float32"), (0.95, "bfloat16")]
)
def test_bfloat16_must_not_be_slower(machine: Machine, speedup: float, chosen: str) -> None:
    machine.speedup = speedup
    assert in_new_process() == chosen
    # A machine is measured once.
    machine.speedup = 1.5 - speedup
    assert in_new_process() == chosen
    assert machine.measurements == 1


def test_a_process_does_not_change_its_mind_without_a_file(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "file"))
    assert in_new_process() == "bfloat16"
    machine.speedup = 0.5
    assert serving_dtype("auto").name == "bfloat16"
    assert in_new_process() == "float32"
    assert machine.measurements == 2


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (jaxlib.version, "__version__", "99.0"),
        (precision, "this_processor", lambda: Processor("EPYC", (), 2)),
        (precision, "this_processor", lambda: Processor("EPYC", ("avx512_bf16",), 4)),
        (precision, "this_processor", lambda: Processor("Xeon", ("avx512_bf16",), 2)),
    ],
    ids=["jaxlib", "instructions", "cores", "name"],
)
def test_another_machine_or_jaxlib_is_measured_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, value: object
) -> None:
    assert in_new_process() == "bfloat16"
    machine.speedup = 0.5
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        assert in_new_process() == "float32"
    assert in_new_process() == "bfloat16"  # what was kept of the first one still is
    assert machine.measurements == 2


def test_the_log_says_what_was_chosen_and_why(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        in_new_process()
        serving_dtype("auto")
    said = "dtype auto is bfloat16: bfloat16 is 1.50 times as fast as float32 at 8 rows on this CPU"
    assert caplog.messages == [said]


def test_the_environment_has_the_last_word(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CPU_DTYPE", "float32")
    assert in_new_process() == "float32"
    monkeypatch.setenv("BLOCKDRAFT_CPU_DTYPE", "float16")
    with pytest.raises(ValueError, match="BLOCKDRAFT_CPU_DTYPE must be float32 or bfloat16"):
        in_new_process()
    assert machine.measurements == 0


@pytest.mark.parametrize(
    ("asked", "backend", "chosen"),
    [
        ("float32", "cpu", "float32"),
        ("bfloat16", "cpu", "bfloat16"),
        ("auto", "tpu", "bfloat16"),
        ("auto", "gpu", "float32"),
    ],
)
def test_what_needs_no_measurement_is_not_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, asked: str, backend: str, chosen: str
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert in_new_process(asked) == chosen
    assert machine.measurements == 0


@pytest.mark.parametrize(
    ("base", "other"),
    [
        # A round that something disturbs does not count,
        ([9.0, 0.3, 0.3, 0.3, 0.3], [0.1, 7.0, 0.2, 0.2, 0.2]),
        # and work beside several meets both.
        ([0.3, 0.3, 1.2, 1.2, 0.3], [0.2, 0.2, 0.8, 0.8, 0.2]),
    ],
)
def test_other_work_does_not_change_the_result(base: list[float], other: list[float]) -> None:
    found = speedup(iter(base).__next__, iter(other).__next__, rounds=5)
    assert found == pytest.approx(1.5)


def test_the_trial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LAYERS", 1)
    assert bfloat16_speedup() > 0
