"""Shapes, packing and the order of a step's features."""

import random
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.sampling import pack_sampling
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.device.buckets import Bucket, all_buckets, bucket_for, least_step_tokens
from blockdraft_verifier.device.feature_form import final_positions_first
from blockdraft_verifier.device.packing import pack, reading
from blockdraft_verifier.device.portable_attention import RaggedBatch
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence


@pytest.mark.parametrize("exponent", range(1, 12))
def test_next_power_of_two_at_both_sides(exponent: int) -> None:
    power = 2**exponent
    assert next_power_of_two(power) == power
    assert next_power_of_two(power + 1) == 2 * power
    if power > 2:
        assert next_power_of_two(power - 1) == power
    assert next_power_of_two(1) == 1


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 5, 8, 15, 16, 17, 64])
@pytest.mark.parametrize("max_tokens", [64, 65, 100, 128])
def test_buckets_hold_every_step(max_rows: int, max_tokens: int) -> None:
    max_block = 5
    buckets = all_buckets(max_rows, max_tokens, max_block)
    assert buckets == tuple(sorted(set(buckets)))
    assert max(bucket.rows for bucket in buckets) == next_power_of_two(max_rows)
    for bucket in buckets:
        assert bucket.tokens & (bucket.tokens - 1) == 0
        assert bucket.rows & (bucket.rows - 1) == 0
        assert bucket.rows <= bucket.tokens < 2 * max_tokens
    rng = random.Random(max_rows)
    for _ in range(50):
        rows = rng.randint(1, max_rows)
        tokens = rng.randint(rows, max_tokens)
        bucket = bucket_for(buckets, rows, tokens)
        assert bucket.rows >= rows
        assert bucket.tokens >= tokens
        assert bucket.choices >= min(tokens, rows * max_block)
        # Nothing smaller would have done.
        assert bucket.tokens == next_power_of_two(tokens)
        holding = [b for b in buckets if b.rows >= rows and b.tokens == bucket.tokens]
        assert bucket.choices == min(b.choices for b in holding)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 5, 8, 15, 16, 17, 64])
def test_plain_steps_are_padded_to_less_than_twice_as_many_tokens(max_rows: int) -> None:
    buckets = all_buckets(max_rows, 128, 5)
    for rows in range(1, max_rows + 1):
        assert bucket_for(buckets, rows, rows).tokens == next_power_of_two(rows)


@pytest.mark.parametrize("least", [1, 2, 15, 16, 17, 64, 256])
@pytest.mark.parametrize("max_rows", [1, 5, 16])
def test_no_bucket_is_smaller_than_the_least_step(least: int, max_rows: int) -> None:
    max_tokens, max_block = 128, 5
    least_shape = next_power_of_two(least)
    buckets = all_buckets(max_rows, max_tokens, max_block, least)
    assert buckets == tuple(sorted(set(buckets)))
    assert min(bucket.tokens for bucket in buckets) == least_shape
    # Products with the head see the choices only.
    assert min(bucket.choices for bucket in buckets) == least_shape
    rng = random.Random(least)
    for _ in range(50):
        rows = rng.randint(1, max_rows)
        tokens = rng.randint(rows, max_tokens)
        bucket = bucket_for(buckets, rows, tokens)
        assert max(tokens, least_shape) <= bucket.tokens
        assert bucket.tokens == min(b.tokens for b in buckets if holds(b, rows, tokens))
        assert min(tokens, rows * max_block) <= bucket.choices <= bucket.tokens


@pytest.mark.parametrize("least", [1, 16])
def test_no_shape_has_a_wider_twin(least: int) -> None:
    costs = [(bucket.tokens, bucket.choices) for bucket in all_buckets(64, 1024, 16, least)]
    assert len(costs) == len(set(costs))
    # Long prompts of few sequences are not charged for the logits of many.
    alone = bucket_for(all_buckets(64, 1024, 16, least), 1, 1024)
    assert alone == Bucket(1, 1024, 16)


def holds(bucket: Bucket, rows: int, tokens: int) -> bool:
    return bucket.rows >= rows and bucket.tokens >= tokens


def test_a_lone_sequence_has_one_shape_for_plain_and_drafted_steps_on_tpu() -> None:
    least = least_step_tokens("tpu")
    buckets = all_buckets(16, 128, 16, least)
    assert {bucket_for(buckets, 1, tokens) for tokens in range(1, 17)} == {Bucket(16, 16, 16)}


@pytest.mark.parametrize(("platform", "least"), [("cpu", 1), ("tpu", 16), ("gpu", 1), ("other", 1)])
def test_the_platform_decides(platform: str, least: int) -> None:
    assert least_step_tokens(platform) == least


def test_row_counts_rise_fourfold_up_to_the_limit() -> None:
    def row_counts(max_rows: int) -> list[int]:
        buckets = all_buckets(max_rows, 64, 1)
        return sorted({bucket.rows for bucket in buckets if bucket.tokens == 64})

    assert row_counts(1) == [1]
    assert row_counts(5) == [1, 4, 8]
    assert row_counts(16) == [1, 4, 16]
    assert row_counts(17) == [1, 4, 16, 32]
    # Those between them have one shape.
    between = set(all_buckets(17, 64, 1)) - set(all_buckets(17, 64, 1, 2))
    assert {bucket for bucket in between if bucket.rows in (2, 8)} == {
        Bucket(2, 2, 2),
        Bucket(8, 8, 8),
    }


def test_what_does_not_fit_is_refused() -> None:
    buckets = all_buckets(4, 32, 1)
    assert bucket_for(buckets, 4, 32) == Bucket(4, 32, 4)
    with pytest.raises(ValueError, match="5 rows"):
        bucket_for(buckets, 5, 5)
    with pytest.raises(ValueError, match="33 tokens"):
        bucket_for(buckets, 1, 33)


def test_packing_by_hand() -> None:
    decoding = TokenSequence(1, GenerationRequest("a", (1, 2, 3, 4), emitted=(5,)), 0.0)
    decoding.committed, decoding.pages = 4, [7, 2]
    prompt = TokenSequence(
        2, GenerationRequest("b", (11, 12, 13), sampling=Sampling(0.5, seed=-1), log_probs=0), 0.0
    )
    prompt.pages = [5]
    rows = (Row(decoding, 4, (5, 6, 7), 2), Row(prompt, 0, (11, 12, 13), 0))
    packed = pack(rows, Bucket(4, 8, 8), page_size=4, num_pages=9, max_pages=3)
    expected: dict[str, list[Any]] = {
        "token_ids": [5, 6, 7, 11, 12, 13, 0, 0],
        "positions": [4, 5, 6, 0, 1, 2, 0, 0],
        "choice_token": [0, 1, 2, 5, 0, 0, 0, 0],
        "choice_row": [0, 0, 0, 1, 0, 0, 0, 0],
        "first_choice": [0, 3, 0, 0],
        "draft_count": [2, 0, 0, 0],
        "log_probs_wanted": [True],
    }
    for name, values in expected.items():
        assert getattr(packed, name).tolist() == values, name
    assert packed.batch.row_starts.tolist() == [0, 3, 6, 6, 6]
    assert packed.batch.context_lengths.tolist() == [7, 3, 0, 0]
    assert packed.batch.page_table.tolist() == [[7, 2, 0], [5, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert packed.batch.slots.tolist() == [8, 9, 10, 20, 21, 22, 36, 36]
    assert packed.sampling.temperature.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert packed.sampling.seed.tolist() == [[0, 0], [2**32 - 1] * 2, [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("seed", "low", "high"),
    [
        (0, 0, 0),
        (2**32 - 1, 2**32 - 1, 0),
        (2**32, 0, 1),
        (2**63 - 1, 2**32 - 1, 2**31 - 1),
        (-1, 2**32 - 1, 2**32 - 1),
        (-(2**63), 0, 2**31),
    ],
)
def test_seeds_keep_all_their_bits(seed: int, low: int, high: int) -> None:
    assert pack_sampling([Sampling(seed=seed)], 1).seed.tolist() == [[low, high]]


ROWS, TOKENS = 4, 16
order_features = jax.jit(partial(final_positions_first, token_count=TOKENS))


@pytest.mark.parametrize("seed", range(30))
def test_final_positions_come_first_in_order_and_rejected_drafts_never(seed: int) -> None:
    rng = random.Random(seed)
    starts, draft_count, accepted, final, rejected = [0], [], [], [], []
    for _ in range(rng.randint(1, ROWS)):
        drafted = rng.randint(0, 2)
        known = rng.randint(1, 4 - drafted)
        right = rng.randint(0, drafted)
        tokens = list(range(starts[-1], starts[-1] + known + drafted))
        final += tokens[: known + right]
        rejected += tokens[known + right :]
        starts.append(tokens[-1] + 1)
        draft_count.append(drafted)
        accepted.append(right)
    padding = ROWS - len(accepted)
    batch = RaggedBatch(
        row_starts=jnp.asarray(np.array(starts + starts[-1:] * padding, np.int32)),
        context_lengths=jnp.zeros(ROWS, jnp.int32),
        page_table=jnp.zeros((ROWS, 1), jnp.int32),
        slots=jnp.zeros(TOKENS, jnp.int32),
    )
    # What padding rows say must not matter.
    garbage = [rng.randint(0, 3) for _ in range(padding)]
    order = order_features(
        batch,
        jnp.asarray(np.array(draft_count + garbage, np.int32)),
        jnp.asarray(np.array(accepted + garbage, np.int32)),
    ).tolist()
    assert order[: len(final)] == final
    assert sorted(order) == list(range(TOKENS))
    assert set(rejected).isdisjoint(order[: len(final)])


@pytest.mark.parametrize(("context", "tokens"), [(0, 0), (5, 5), (8, 8), (100, 8)])
def test_a_batch_to_time_reads_a_context_and_writes_nothing(context: int, tokens: int) -> None:
    padding = pack((), Bucket(4, 8, 8), page_size=4, num_pages=9, max_pages=30).batch
    batch = reading(padding, context)
    assert batch.row_starts.tolist() == [0, *[tokens] * 4]
    assert batch.context_lengths.tolist() == [context, 0, 0, 0]
    assert batch.slots.tolist() == [36] * 8
