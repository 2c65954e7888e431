"""What the check of learning must not let pass."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.chaos.test_check import TRUE
from tests.drafter.learning.kept import Kept
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tools.chaos.learned import wrong_samples, wrong_versions
from tools.chaos.wanted import PATIENT_SECONDS, Wanted

from blockdraft_client import SamplingParams
from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.learning.samples import RAW, TrainingSample
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.sources import obtain_drafter
from blockdraft_models.weights.loading import load_checkpoint_config

LIMIT = 1 << 20


def wanted(number: int, *, excluded: bool = False) -> Wanted:
    sampling = SamplingParams()
    return Wanted(f"{number}: duck", sampling, False, None, PATIENT_SECONDS, excluded=excluded)


ASKED, ANSWERS = [wanted(0, excluded=True), wanted(1)], [TRUE, TRUE]


def record(folder: Path, text: str, completion_start: int = 7) -> Kept:
    """Record a text whose tokens are its bytes."""
    samples = Kept(folder, LIMIT)
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    features = np.zeros((len(ids), 2), ml_dtypes.bfloat16)
    samples.add(TrainingSample(ids, features, "target", RAW, (1,), completion_start))
    return samples


def wrong(folder: Path, limit: int = LIMIT) -> list[str]:
    return [each.partition(": ")[2] for each in wrong_samples(folder, limit, ASKED, ANSWERS)]


@pytest.mark.parametrize(
    "text", ["1: du", "1: duckabc", "1: ducka", "1: duck", "1: duckabc and more"]
)
def test_what_was_said_is_right_as_far_as_it_goes(tmp_path: Path, text: str) -> None:
    record(tmp_path, text, completion_start=min(7, len(text)))
    assert wrong(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0: duckabc", "request 0 is excluded"),
        ("1: duckabd", "request 1 has other tokens"),
        ("1: goosabc", "request 1 has other tokens"),
        ("2: duckabc", "it is of no request"),
        ("duckabc", "it is of no request"),
    ],
)
def test_what_is_excluded_or_was_not_said_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    record(tmp_path, text)
    assert wrong(tmp_path) == [why]


def test_damage_a_wrong_beginning_and_too_many_bytes_are_wrong(tmp_path: Path) -> None:
    record(tmp_path, "1: duckabc", completion_start=6)
    assert wrong(tmp_path) == ["the completion of request 1 is said to start at 6"]
    samples = record(tmp_path, "1: duckabc")
    path = tmp_path / samples.names()[1]
    path.write_bytes(path.read_bytes()[:-1])
    assert len(wrong(tmp_path)) == 2
    assert len(wrong(tmp_path, limit=10)) == 3
    samples.clear()
    [nothing] = wrong_samples(tmp_path, LIMIT, ASKED, ANSWERS)
    assert nothing == "no samples"


def test_a_store_that_is_damaged_or_not_what_serves_is_wrong(tmp_path: Path) -> None:
    target, store = tmp_path / "target", VersionStore(tmp_path / "learn")
    write_hf_checkpoint(random_decoder(tiny_config(num_layers=5), 0), target)
    drafter = obtain_drafter(
        "random", load_checkpoint_config(target), block_size=8, num_layers=1, dtype="float32"
    )

    def write(folder: Path) -> None:
        save_drafter(drafter.model, folder)

    numbers = [store.add(write, kind="shipped", fingerprint="f").number for _ in range(2)]
    assert list(wrong_versions(store, target, 1)) == ["no version shall serve"]
    for number in numbers:
        store.promote(number)
    assert list(wrong_versions(store, target, 2)) == []
    assert list(wrong_versions(store, target, 1)) == ["version 1 serves instead of 2"]
    (store.path(1) / "version.json").write_text("{")
    assert list(wrong_versions(store, target, 2)) == ["versions [1] cannot be read"]
    (store.path(2) / "model.safetensors").write_bytes(b"")
    assert len(list(wrong_versions(store, target, 2))) == 2
