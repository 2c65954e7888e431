"""What makes two computations the same."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blockdraft_models.processor import processor_facts
from blockdraft_verifier import computation as device_facts
from blockdraft_verifier.computation import Computation

COMPUTATION = Computation(
    target_fingerprint="0123456789abcdef",
    dtype="bfloat16",
    weights="float",
    kv_cache_dtype="auto",
    device_kind="TPU v5p",
    device_count=4,
    compiler="jaxlib 0.10.2, libtpu 0.0.30",
)
X86 = """processor\t: 0
model name\t: Some CPU
cpu MHz\t\t: 2400.000
flags\t\t: fpu avx2

processor\t: 1
model name\t: Some CPU
cpu MHz\t\t: 1200.000
flags\t\t: fpu avx2
"""


@pytest.mark.parametrize(
    "change",
    [
        {"target_fingerprint": "fedcba9876543210"},
        {"dtype": "float32"},
        {"weights": "int8"},
        {"kv_cache_dtype": "fp8"},
        {"device_kind": "TPU v6e"},
        {"device_count": 8},
        {"compiler": "jaxlib 0.10.3, libtpu 0.0.30"},
        {"rounding": "exact"},
        {"rounding": "inexact"},
        {"adapters": ("sql:0123456789abcdef",)},
    ],
)
def test_every_part_counts(change: dict[str, Any]) -> None:
    assert replace(COMPUTATION, **change).fingerprint != COMPUTATION.fingerprint
    assert len(COMPUTATION.fingerprint) == 16


def test_a_restart_changes_nothing() -> None:
    """The value is written down: it must be the same in every process."""
    assert replace(COMPUTATION).fingerprint == "051c772a8fd0c815"


def test_facts_of_this_process_stay_the_same() -> None:
    assert device_facts.device_kind() == device_facts.device_kind()
    assert device_facts.device_kind().startswith("cpu, ")
    assert device_facts.compiler().startswith("jaxlib ")


def test_a_processor_is_what_it_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock, which changes all the time, is not part of it."""
    told = partial(processor_facts, tmp_path / "cpuinfo")
    monkeypatch.setattr(device_facts, "processor_facts", told)
    (tmp_path / "cpuinfo").write_text(X86)
    slow = device_facts.device_kind()
    (tmp_path / "cpuinfo").write_text(X86.replace("2400", "3600"))
    assert device_facts.device_kind() == slow
    (tmp_path / "cpuinfo").write_text(X86.replace("avx2", "avx512f"))
    assert device_facts.device_kind() != slow
    (tmp_path / "cpuinfo").unlink()
    assert device_facts.device_kind().startswith("cpu, ")


def test_a_pinned_process_computes_with_fewer_cores(one_core: None) -> None:
    """XLA divides sums by the cores it may use, not by those there are."""
    assert ", 1 cores, " in device_facts.device_kind()
