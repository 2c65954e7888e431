"""The bias of each drafted token by the one before it, against plain float64 loops."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafter.builders import drafter_config, random_drafter
from tests.drafter.compiled.test_recycling import LENGTH, biased, pack, random_choices

from blockdraft_drafter.checkpoint import build, published_arrays
from blockdraft_drafter.compiled.packing import KEPT_CHOICES, pack_blocks
from blockdraft_drafter.dflash.model import DFLASH, MarkovHead, draft_in_turn
from blockdraft_drafter.method import DraftRow

VOCAB, DRAFT, RANK = 30, 12, 4


def random_head(seed: int, draft: int = DRAFT) -> MarkovHead:
    head = MarkovHead(VOCAB, draft, RANK, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    second = np.random.default_rng(seed).standard_normal((draft, RANK)) * 2
    head.markov_w2[...] = jnp.asarray(second, jnp.float32)
    return head


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), own=st.booleans())
def test_tokens_are_drafted_one_after_another(seed: int, own: bool) -> None:
    rng = np.random.default_rng(seed)
    blocks, tokens = 3, 5
    draft = DRAFT if own else VOCAB
    ids = np.sort(rng.permutation(VOCAB)[:draft]) if own else np.arange(VOCAB)
    head = random_head(seed, draft)
    logits = rng.standard_normal((blocks, tokens, draft)).astype(np.float32)
    anchors = rng.integers(0, VOCAB, blocks).astype(np.int32)
    features = np.zeros((0, 1), np.float32)
    rows = [
        DraftRow(
            slot, LENGTH, features, int(anchor), tokens, recycled=random_choices(rng, KEPT_CHOICES)
        )
        for slot, anchor in enumerate(anchors)
    ]
    drafted = draft_in_turn(
        head,
        jnp.asarray(logits),
        pack_blocks(rows, blocks, pack(rows, ids, VOCAB)),
        jnp.asarray(ids) if own else None,
    )
    first, second = (np.asarray(w[...], np.float64) for w in (head.markov_w1, head.markov_w2))
    for block in range(blocks):
        previous = anchors[block]
        for token in range(tokens):
            scores = logits[block, token] + second @ first[previous]
            position = LENGTH + 1 + token
            best = int(biased(scores, rows[block], int(previous), position, ids).argmax())
            bias = head(jnp.asarray([previous], jnp.int32))[0]
            np.testing.assert_allclose(bias, second @ first[previous], atol=1e-4)
            previous = ids[best]
            assert drafted[block, token] == previous


def test_a_new_head_changes_nothing() -> None:
    head = MarkovHead(VOCAB, DRAFT, RANK, dtype=jnp.float32, rngs=nnx.Rngs(0))
    assert not jax.device_get(head(jnp.arange(VOCAB))).any()


def test_a_platform_may_hold_it_in_another_form() -> None:
    config = drafter_config(markov_rank=RANK)
    arrays = published_arrays(random_drafter(config).model)
    model = build(DFLASH, config, arrays, dtype=jnp.bfloat16)
    head = model.markov_head
    assert head is not None
    before = jax.device_get(head(jnp.arange(VOCAB)))
    model.suit("tpu")
    assert head.markov_w2[...].dtype == jnp.bfloat16
    model.suit("cpu")
    assert head.markov_w1[...].dtype == head.markov_w2[...].dtype == jnp.float32
    np.testing.assert_allclose(head(jnp.arange(VOCAB)), before, rtol=1e-5, atol=1e-6)
