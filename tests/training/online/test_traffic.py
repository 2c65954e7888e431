"""Training samples as rows: which are learned from or held out, and never too many at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.drafter.learning.kept import Kept, sample

from blockdraft_drafter.learning.samples import TrainingSample
from blockdraft_training.online.settings import LearnSettings, Schedule
from blockdraft_training.online.traffic import (
    SampleForm,
    Slice,
    Traffic,
    cut,
    is_held_out,
    prompt_digest,
    row_of,
)

FORM = SampleForm("target", (1, 2), 8, 4, frozenset({"mine"}), 100)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, 1 << 30)


def traffic(kept: Kept, passes: int = 2, **changes: Any) -> Traffic:
    schedule = Schedule(held_out_share=changes.pop("held_out_share", 0.3), passes=passes)
    settings = LearnSettings(**{"max_length": 64, "slice_mib": 1, **changes}, schedule=schedule)
    return Traffic(kept, FORM, settings)


def hundred(kept: Kept) -> list[TrainingSample]:
    every = [sample(seed) for seed in range(100)]
    for each in every:
        kept.add(each)
    return every


def completions(piece: Slice | None) -> set[tuple[int, ...]]:
    assert piece is not None
    return {row.token_ids for row in piece.rows}


def held(each: TrainingSample) -> bool:
    return is_held_out(prompt_digest(each), 0.3)


def test_what_is_held_out_is_never_learned_from(kept: Kept) -> None:
    every = hundred(kept)
    found = traffic(kept)
    out, learned = completions(found.held_out(1000)), completions(found.next_slice())
    assert not out & learned
    assert out | learned == {tuple(each.token_ids.tolist()) for each in every}
    assert 15 < len(out) < 45
    # Two completions to one prompt are on the same side, in every process.
    other = replace(every[0], token_ids=every[0].token_ids.copy())
    other.token_ids[5:] = 7
    assert held(other) == held(every[0])


def test_the_newest_are_held_out_and_learned_from_first(kept: Kept) -> None:
    every = hundred(kept)
    size = every[0].features.nbytes
    found = traffic(kept)
    found._slice_bytes = 10 * size
    out = [each for each in every if held(each)][-4:]
    assert completions(found.held_out(4)) == {tuple(each.token_ids.tolist()) for each in out}
    learned = [each for each in every if not held(each)]
    first = found.next_slice()
    assert {tuple(each.token_ids.tolist()) for each in learned[-5:]} <= completions(first)
    assert first is not None
    # Half of it comes from all there is; none twice, and no more than there is room for.
    assert len(first.rows) == len(completions(first)) == 10
    assert first.features.nbytes == 10 * size


def test_everything_is_learned_from_so_often_and_then_waited_for(kept: Kept) -> None:
    for seed in range(20):
        kept.add(sample(seed))
    found = traffic(kept)
    assert completions(found.next_slice()) == completions(found.next_slice())
    assert found.next_slice() is None
    while held(sample(seed := seed + 1)):
        pass
    kept.add(sample(seed))
    assert tuple(sample(seed).token_ids.tolist()) in completions(found.next_slice())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target_fingerprint": "other"}, "another target"),
        ({"layer_ids": (1, 3)}, "features of other layers"),
        ({"feature_form": "theirs"}, "another projection"),
        ({"token_ids": np.full(20, 100, np.int32)}, "tokens outside the vocabulary"),
        ({"completion_start": 19}, "no completion"),
        (
            {"features": np.full((20, 8), np.nan, ml_dtypes.bfloat16)},
            "features that are not finite",
        ),
        ({"features": np.zeros((20, 7), ml_dtypes.bfloat16)}, "features of another width"),
    ],
)
def test_what_does_not_fit_is_passed_over(kept: Kept, changes: dict[str, Any], reason: str) -> None:
    kept.add(sample(0, **changes))
    found = traffic(kept)
    assert found.next_slice() is None
    assert found.held_out(8) is None
    assert found.refused == {reason: 1}


def test_damaged_files_and_files_that_go_are_passed_over(kept: Kept) -> None:
    names = [kept.add(sample(seed)) for seed in range(30)]
    found = traffic(kept, held_out_share=0.01, passes=9)
    assert len(completions(found.next_slice())) >= 29
    (kept.directory / names[3]).write_bytes(b"rubbish")
    (kept.directory / names[4]).unlink()
    left = completions(found.next_slice())
    assert tuple(sample(3).token_ids.tolist()) not in left
    assert tuple(sample(4).token_ids.tolist()) not in left
    assert len(left) >= 27


def test_raw_and_projected_features_are_never_mixed(kept: Kept) -> None:
    for seed in range(10):
        kept.add(sample(seed))
    for seed in range(10, 20):
        kept.add(sample(seed, feature_form="mine"))
    found = traffic(kept, held_out_share=0.01)
    first = found.next_slice()
    assert first is not None
    assert first.projected
    assert first.features.shape[1] == 4
    assert completions(first) <= {tuple(sample(n).token_ids.tolist()) for n in range(10, 20)}


def test_of_a_long_sequence_what_is_around_the_beginning_of_the_answer_is_kept() -> None:
    long = sample(0, tokens=400, completion_start=300)
    short = cut(long, 64)
    assert len(short.token_ids) == len(short.features) == 64
    assert short.completion_start == 16
    assert (short.token_ids == long.token_ids[284:348]).all()
    assert (short.features == long.features[284:348]).all()
    at_the_end = cut(sample(0, tokens=400, completion_start=390), 64)
    assert at_the_end.completion_start == 54
    unknown = cut(sample(0, tokens=400, completion_start=-1), 64)
    assert unknown.completion_start == -1


def test_where_the_answer_is_unknown_every_token_is_learned() -> None:
    row = row_of(sample(0, completion_start=-1))
    assert len(row.prompt) == 1
    assert len(row.response) == 19
    assert len(row_of(sample(0)).prompt) == 5


def test_batches_are_of_similar_lengths_and_full(kept: Kept) -> None:
    for seed in range(30):
        kept.add(sample(seed, tokens=(20, 100, 200)[seed % 3]))
    piece = traffic(kept, held_out_share=0.01, max_length=256).next_slice()
    assert piece is not None
    cut_up = piece.batches(4, np.random.default_rng(0))
    assert all(len(batch) == 4 for batch in cut_up)
    assert {number for batch in cut_up for number in batch} == set(range(len(piece.rows)))
    for batch in cut_up:
        assert len({len(piece.rows[number].token_ids) for number in batch}) == 1
        built = piece.builder(batch)(batch)
        assert built.features.shape[:2] == built.token_ids.shape
        assert built.teacher_ids.shape[-1] == 0
        begin = piece.offsets[batch[0]]
        assert (np.asarray(built.features)[0, 0] == piece.features[begin]).all()


def test_a_prompt_that_is_asked_again_and_again_is_compared_on_once(kept: Kept) -> None:
    one, other = [sample(seed) for seed in range(50) if held(sample(seed))][:2]
    for _ in range(20):
        kept.add(one)
    kept.add(other)
    found = traffic(kept)
    piece = found.held_out(64)
    assert piece is not None
    assert [row.token_ids for row in piece.rows] == [
        tuple(each.token_ids.tolist()) for each in (other, one)
    ]


def test_short_completions_do_not_stand_in_for_those_that_can_be_compared(kept: Kept) -> None:
    every = [sample(seed) for seed in range(100)]
    for each in every:
        kept.add(each)
    for seed in range(100, 200):
        kept.add(sample(seed, completion_start=16))
    long = [each for each in every if held(each)][-4:]
    found = traffic(kept).held_out(4, longer_than=4)
    assert completions(found) == {tuple(each.token_ids.tolist()) for each in long}
