"""A drafter with a vocabulary of its own: what it proposes, what is kept, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.drafter.builders import (
    TARGET,
    drafter_config,
    make_method,
    random_drafter,
    read_dflash,
    target_parts,
)

from blockdraft_drafter.checkpoint import (
    load_drafter,
    save_drafter,
)
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.method import ContextRow
from blockdraft_models.errors import CheckpointError

VOCABULARY = TARGET.config.vocab_size
Tensors = dict[str, np.ndarray]


def drafter_of(draft_ids: np.ndarray | None) -> Drafter[DFlash]:
    size = None if draft_ids is None else len(draft_ids)
    return replace(random_drafter(drafter_config(draft_vocab_size=size)), draft_ids=draft_ids)


def proposals(draft_ids: np.ndarray | None, *, tied: bool) -> list[tuple[int, ...]]:
    """Draft from a few anchors over one random context."""
    drafter = drafter_of(draft_ids)
    method = make_method(drafter, target_parts(tied=tied))
    width = drafter.model.config.feature_width
    features = np.random.default_rng(3).standard_normal((9, width)).astype(np.float32)
    proposed = []
    for slot, anchor in enumerate((5, 17, 40)):
        [proposal] = method.step([ContextRow(slot, 0, features, anchor, 3)])
        proposed.append(tuple(proposal.token_ids))
    return proposed


@pytest.mark.parametrize("tied", [True, False])
def test_proposes_the_likeliest_of_its_own_vocabulary(tied: bool) -> None:
    free = proposals(None, tied=tied)
    likeliest = np.unique(np.concatenate([np.array(tokens) for tokens in free]))
    assert proposals(likeliest.astype(np.int32), tied=tied) == free
    without = np.setdiff1d(np.arange(VOCABULARY), likeliest[:1]).astype(np.int32)
    for tokens, unrestricted in zip(proposals(without, tied=tied), free, strict=True):
        assert likeliest[0] not in tokens
        for token, wanted in zip(tokens, unrestricted, strict=True):
            assert token == wanted or wanted == likeliest[0]


def saved(directory: Path, change: Callable[[Tensors], None] = lambda _: None) -> Path:
    drafter = drafter_of(np.array([3, 9, 40, 63], np.int32))
    save_drafter(drafter.model, directory, drafter.draft_ids)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_round_trip_on_disk(tmp_path: Path) -> None:
    tensors = load_file(saved(tmp_path) / "model.safetensors")
    np.testing.assert_array_equal(tensors["d2t"], [3, 8, 38, 60])
    assert tensors["d2t"].dtype == np.int64
    loaded = load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    assert loaded.model.config.draft_vocab_size == 4
    assert loaded.draft_ids is not None
    np.testing.assert_array_equal(loaded.draft_ids, [3, 9, 40, 63])


def test_the_inverse_table_is_tolerated(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["t2d"] = np.isin(np.arange(VOCABULARY), [3, 9, 40, 63])

    assert (
        load_drafter(DFLASH, saved(tmp_path, add), TARGET, dtype=jnp.float32).draft_ids is not None
    )


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (None, "missing: d2t"),
        ([3, 8, 38], r"d2t is \(3,\), expected \(4,\)"),
        ([3, 8, 38, 61], "distinct tokens of a vocabulary of 64"),
        ([-1, 8, 38, 60], "distinct tokens"),
        ([3, 2, 38, 60], "distinct tokens"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, offsets: list[int] | None, message: str) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["d2t"]
        if offsets is not None:
            tensors["d2t"] = np.array(offsets, np.int64)

    with pytest.raises(CheckpointError, match=message):
        load_drafter(DFLASH, saved(tmp_path, spoil), TARGET, dtype=jnp.float32)


def test_the_size_is_published_and_a_full_one_means_none() -> None:
    config = drafter_config(draft_vocab_size=10)
    published = config.to_hf()
    assert published["draft_vocab_size"] == 10
    assert read_dflash(published).draft_vocab_size == 10
    full = {**published, "draft_vocab_size": VOCABULARY}
    assert read_dflash(full).draft_vocab_size is None


@pytest.mark.parametrize("size", [0, VOCABULARY + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="draft_vocab_size"):
        drafter_config(draft_vocab_size=size)
