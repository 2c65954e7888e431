"""Features kept on disk are those of the target, whatever interrupted their computation."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.builders import random_decoder, run_dense
from tests.models.tiny import tiny_config
from tests.training.pair import PROMPT, greedy_rows

from blockdraft_models.decoder.model import Decoder
from blockdraft_training import feature_cache
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.errors import CorpusError, TrainingError
from blockdraft_training.feature_cache import FeatureCache, length_batches
from blockdraft_training.target import FeatureSpec

VOCAB = 64
FINGERPRINT = "0123456789abcdef"
SPEC = FeatureSpec((0, 2), teacher_size=5)
# Two padded lengths; three passes of two shapes.
LENGTHS = ((3, 9), (12, 30), (1, 31), (20, 20), (5, 20), (30, 3), (8, 1), (33, 31))


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feature_cache, "_BATCH_TOKENS", 128)
        yield


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    config = tiny_config(num_layers=3, vocab_size=VOCAB, bos_token_id=1, eos_token_ids=(2,))
    return random_decoder(config)


@pytest.fixture(scope="module")
def rows() -> list[CorpusRow]:
    rng = np.random.default_rng(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, VOCAB, count).tolist())

    return [
        CorpusRow(f"r{number}", "math", 0.7, ids(prompt), ids(response))
        for number, (prompt, response) in enumerate(LENGTHS)
    ]


def open_cache(directory: Path, rows: Sequence[CorpusRow], **changes: Any) -> FeatureCache:
    settings: dict[str, Any] = {"spec": SPEC, "hidden_size": 32, "fingerprint": FINGERPRINT}
    return FeatureCache(directory, rows, **{**settings, **changes})


class StoppedError(Exception):
    """What stops a computation in these tests."""


def fill(cache: FeatureCache, decoder: Decoder, stop_after: int | None = None) -> list[int]:
    """Fill a cache and return the tokens done after each pass; interrupts it if told to."""
    done: list[int] = []

    def report(tokens: int, total: int) -> None:
        done.append(tokens)
        if len(done) == stop_after:
            raise StoppedError

    with contextlib.suppress(StoppedError):
        cache.fill(decoder, report)
    return done


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, rows: list[CorpusRow], decoder: Decoder
) -> FeatureCache:
    cache = open_cache(tmp_path_factory.mktemp("features"), rows)
    fill(cache, decoder)
    return cache


def test_every_row_has_the_targets_features_and_choices(
    filled: FeatureCache, rows: list[CorpusRow], decoder: Decoder
) -> None:
    for number, row in enumerate(rows):
        ids = np.zeros((1, 64), np.int32)
        count = len(row.token_ids)
        ids[0, :count] = row.token_ids
        logits, output = run_dense(decoder, ids, SPEC.layer_ids)
        begin, end = filled.offsets[number], filled.offsets[number + 1]
        assert end - begin == count
        expected = np.asarray(output.captured.astype(jnp.bfloat16).astype(jnp.float32))[:count]
        features = filled.features_of(int(begin), int(end)).astype(np.float32)
        # Sums in another order may round to the neighbouring bfloat16.
        np.testing.assert_allclose(features, expected, rtol=2**-7, atol=1e-5)
        assert (features == expected).mean() > 0.99
        # What a position's logits say is the choice of the token after it.
        scored = logits[0, len(row.prompt) - 1 : count - 1]
        completion = begin + len(row.prompt)
        best = np.sort(scored, axis=-1)[:, : -SPEC.teacher_size - 1 : -1]
        np.testing.assert_allclose(
            filled.teacher_logits[completion:end], best, rtol=2e-3, atol=1e-3
        )
        chosen = np.take_along_axis(scored, filled.teacher_ids[completion:end], axis=-1)
        np.testing.assert_allclose(chosen, best, rtol=1e-4, atol=1e-4)


def test_an_interrupted_computation_goes_on(
    tmp_path: Path, filled: FeatureCache, rows: list[CorpusRow], decoder: Decoder
) -> None:
    assert len(list(length_batches(rows))) == 3
    tokens = sum(map(sum, LENGTHS))
    for _ in range(2):
        [done] = fill(open_cache(tmp_path, rows), decoder, stop_after=1)
        assert done < tokens
    cache = open_cache(tmp_path, rows)
    assert fill(cache, decoder) == [tokens]
    assert fill(open_cache(tmp_path, rows), decoder) == []
    for name in ("features", "teacher_ids", "teacher_logits"):
        once, again = getattr(filled, name), getattr(cache, name)
        np.testing.assert_array_equal(np.asarray(again), np.asarray(once), err_msg=name)


def test_features_of_something_else_are_refused(tmp_path: Path, rows: list[CorpusRow]) -> None:
    open_cache(tmp_path, rows)
    others: list[tuple[Sequence[CorpusRow], dict[str, Any]]] = [
        (rows[:-1], {}),
        ([replace(rows[0], response=(1, 2, 3)), *rows[1:]], {}),
        (rows, {"spec": FeatureSpec((0, 1), teacher_size=5)}),
        (rows, {"spec": FeatureSpec((0, 2), teacher_size=6)}),
        (rows, {"fingerprint": "fedcba9876543210"}),
    ]
    for other_rows, changes in others:
        with pytest.raises(TrainingError, match="another corpus, target or choice of layers"):
            open_cache(tmp_path, other_rows, **changes)


def test_a_part_of_the_layers_can_be_asked_for(
    tmp_path: Path, rows: list[CorpusRow], decoder: Decoder
) -> None:
    spec = FeatureSpec((0, 1, 2), teacher_size=5)
    [done] = fill(open_cache(tmp_path, rows, spec=spec), decoder, stop_after=1)
    assert done
    part = open_cache(tmp_path, rows, spec=FeatureSpec((2, 0), teacher_size=5))
    # What lacks is computed with all layers that are kept.
    assert len(fill(part, decoder)) == 2
    whole = open_cache(tmp_path, rows, spec=spec)
    assert fill(whole, decoder) == []
    for begin, end in pairwise(whole.offsets.tolist()):
        every = np.split(whole.features_of(begin, end), 3, axis=1)
        np.testing.assert_array_equal(part.features_of(begin, end), np.hstack((every[2], every[0])))
        assert np.abs(every[0].astype(np.float32) - every[2].astype(np.float32)).max() > 0


def test_greedy_answers_are_the_first_choices_of_this_target_and_of_no_other(
    tmp_path: Path, decoder: Decoder
) -> None:
    greedy = greedy_rows(decoder, 4, 32, seed=1)
    with pytest.raises(CorpusError, match="made with another target"):
        fill(open_cache(tmp_path / "other", greedy), random_decoder(decoder.config, seed=9))
    cache = open_cache(tmp_path, greedy)
    fill(cache, decoder)
    for number, row in enumerate(greedy):
        completion = slice(int(cache.offsets[number]) + PROMPT, int(cache.offsets[number + 1]))
        assert tuple(cache.teacher_ids[completion, 0].tolist()) == row.response


def test_a_full_disk_is_known_before_anything_is_computed(
    tmp_path: Path, rows: list[CorpusRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    reserve = os.posix_fallocate

    def record(descriptor: int, start: int, size: int) -> None:
        reserve(descriptor, start, size)
        reserved.append(size)

    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(TrainingError, match=r"features\.bfloat16.*No space left on device"):
            open_cache(tmp_path, rows)
    # What could not be reserved is reserved when there is room.
    monkeypatch.setattr(os, "posix_fallocate", record)
    cache = open_cache(tmp_path, rows)
    tokens = int(cache.offsets[-1])
    assert reserved == [tokens * 64 * 2, tokens * 5 * 4, tokens * 5 * 2]


def test_a_lost_file_is_noticed(tmp_path: Path, rows: list[CorpusRow], decoder: Decoder) -> None:
    fill(open_cache(tmp_path, rows), decoder, stop_after=1)
    (tmp_path / "teacher_ids.int32").write_bytes(b"cut")
    with pytest.raises(TrainingError, match=r"teacher_ids\.int32 is damaged"):
        open_cache(tmp_path, rows)
