"""Compiled programs that are found again: only those that are the same, and never a damaged one."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.stages import Compiled, Lowered

from blockdraft_models import kept_programs
from blockdraft_models.kept_programs import KeptPrograms

pytestmark = pytest.mark.usefixtures("jax_keeps_nothing")
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@dataclass
class Lowering:
    """Lowers a program, and counts how often."""

    factor: float = 2.0
    times: int = 0

    def __call__(self) -> Lowered:
        self.times += 1
        argument = jax.ShapeDtypeStruct(ROWS.shape, ROWS.dtype)
        return jax.jit(lambda rows: {"out": jnp.sin(rows) * self.factor}).lower(argument)


@pytest.fixture
def kept(tmp_path: Path) -> KeptPrograms:
    return KeptPrograms(tmp_path / "programs", "blockdraft_runtime")


def result_of(compiled: Compiled) -> np.ndarray:
    return np.asarray(compiled(ROWS)["out"])


def test_a_program_is_compiled_once(kept: KeptPrograms) -> None:
    lowering = Lowering()
    first, second = (kept.compiled(("a", 1), lowering) for _ in range(2))
    assert lowering.times == 1
    np.testing.assert_array_equal(result_of(second), result_of(first))
    np.testing.assert_allclose(result_of(second), 2 * np.sin(ROWS), rtol=1e-6)


def test_another_one_is_another(kept: KeptPrograms) -> None:
    for number, made_from in enumerate([("a", 1), ("a", 2), ("a", 1.0), ("a", True), "a", None]):
        found = kept.compiled(made_from, Lowering(float(number)))
        np.testing.assert_allclose(result_of(found), number * np.sin(ROWS), rtol=1e-6)


def _variable(patch: pytest.MonkeyPatch, kept: KeptPrograms) -> KeptPrograms:
    patch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_cpu_enable_fast_math=false")
    return kept


def _version(patch: pytest.MonkeyPatch, kept: KeptPrograms) -> KeptPrograms:
    patch.setattr(kept_programs, "_versions", lambda: ("jax 99",))
    return kept


def _instructions(patch: pytest.MonkeyPatch, kept: KeptPrograms) -> KeptPrograms:
    patch.setattr(kept_programs, "processor_facts", lambda: {"flags": "fewer"})
    return kept


def _package(patch: pytest.MonkeyPatch, kept: KeptPrograms) -> KeptPrograms:
    return KeptPrograms(kept.folder, "blockdraft_protos")


@pytest.mark.parametrize("change", [_variable, _version, _instructions, _package])
def test_what_was_compiled_by_something_else_is_not_found(
    kept: KeptPrograms,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, KeptPrograms], KeptPrograms],
) -> None:
    lowering = Lowering()
    kept.compiled("a", lowering)
    change(monkeypatch, kept).compiled("a", lowering)
    assert lowering.times == 2


def test_what_jax_was_told_counts(kept: KeptPrograms) -> None:
    lowering, before = Lowering(), jax.config.values["jax_default_matmul_precision"]
    kept.compiled("a", lowering)
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        kept.compiled("a", lowering)
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    assert lowering.times == 2


def test_changed_code_compiles_anew(
    tmp_path: Path, kept: KeptPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "changing"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    changing, lowering = KeptPrograms(kept.folder, "changing"), Lowering()
    for code in ("", "x = 1", "x = 2"):
        (package / "__init__.py").write_text(code)
        kept_programs._code.cache_clear()  # as in a new process
        for _ in range(2):
            changing.compiled("a", lowering)
    assert lowering.times == 3


@pytest.mark.parametrize("content", [b"", b"no program", None])
def test_a_damaged_file_is_replaced(
    kept: KeptPrograms, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    lowering = Lowering()
    kept.compiled("a", lowering)
    [path] = kept.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    with caplog.at_level(logging.WARNING):
        assert result_of(kept.compiled("a", lowering)).any()
    assert "compiling anew" in caplog.text
    kept.compiled("a", lowering)
    assert lowering.times == 2


def test_what_cannot_be_described_or_written_is_compiled(
    tmp_path: Path, kept: KeptPrograms, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    nowhere = KeptPrograms(tmp_path / "file" / "programs", "blockdraft_runtime")
    for folder, made_from in ((kept, lambda: None), (nowhere, "a")):
        caplog.clear()
        lowering = Lowering()
        for _ in range(2):
            assert result_of(folder.compiled(made_from, lowering)).any()
        assert lowering.times == 2
        assert "every start compiles anew" in caplog.text
    assert not kept.folder.exists()


def test_nothing_is_kept_twice(kept: KeptPrograms, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    with pytest.raises(RuntimeError, match="kept twice"):
        kept.compiled("a", Lowering())
