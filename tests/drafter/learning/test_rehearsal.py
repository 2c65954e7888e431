"""Versions that crash or hang the process that loads them, and those that load."""

import os
from pathlib import Path

import pytest
from flax import nnx
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.learning.rehearsal import rehearse
from blockdraft_drafter.learning.versions import VersionError
from blockdraft_drafter.sources import obtain_drafter
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import load_checkpoint_config

# Python runs it at its start: it stands for weights that crash or hang what reads them.
DEADLY = """
import os, signal, sys
if "blockdraft_drafter.learning.rehearsal" in sys.orig_argv:
    os.kill(os.getpid(), signal.{})
"""


def deadly(folder: Path, signal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process that loads a version get a signal."""
    (folder / "sitecustomize.py").write_text(DEADLY.format(signal), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_hf_checkpoint(Decoder(tiny_config(num_layers=5), rngs=nnx.Rngs(0)), tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def version(target: Path, tmp_path: Path) -> Path:
    checkpoint = load_checkpoint_config(target)
    drafter = obtain_drafter("random", checkpoint, block_size=4, num_layers=1, dtype="float32")
    save_drafter(drafter.model, tmp_path / "version")
    return tmp_path / "version"


def test_a_version_that_loads_passes_and_a_damaged_one_says_why(
    target: Path, version: Path
) -> None:
    rehearse(version, str(target))
    weights = version / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(VersionError, match=r"model\.safetensors"):
        rehearse(version, str(target))


@pytest.mark.parametrize(
    ("signal", "reason"), [("SIGKILL", "ended with status -9"), ("SIGSTOP", "hung for 1 s")]
)
def test_a_version_that_kills_or_hangs_its_loader_is_refused(
    target: Path,
    version: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signal: str,
    reason: str,
) -> None:
    deadly(tmp_path, signal, monkeypatch)
    with pytest.raises(VersionError, match=reason):
        rehearse(version, str(target), longest_seconds=1.0 if signal == "SIGSTOP" else 300.0)
