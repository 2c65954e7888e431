"""Loss, gradient and metrics against plain float64 loops."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.drafting import random_batch

from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.methods.objective import (
    Labels,
    block_loss,
    labels_of,
    survival_weights,
)
from blockdraft_training.settings import DFlashSettings
from blockdraft_training.target import HotVocabulary, frequencies

BATCH, BLOCKS, SLOTS, HOT, TEACHER = 2, 4, 3, 7, 3
SHAPE = (BATCH, BLOCKS, SLOTS)
DECAY = 2.5

Fields = dict[str, np.ndarray]


@partial(jax.jit, static_argnums=2)
def loss_and_gradient(logits: Any, labels: Fields, distillation: float) -> Any:
    given = Labels(**{name: jnp.asarray(value) for name, value in labels.items()})
    loss = partial(block_loss, labels=given, decay=DECAY, distillation=distillation)
    return jax.value_and_grad(loss, has_aux=True)(logits)


@jax.jit
def look_up(batch: SequenceBatch, anchors: Any, hot: HotVocabulary) -> Any:
    labels = labels_of(batch, anchors, SLOTS, hot)
    return {name: getattr(labels, name) for name in Labels.__slots__}


def random_labels(rng: np.random.Generator) -> Fields:
    """Return labels of which some are not hot, beyond the completion, or without a soft label."""
    reach = rng.integers(0, SLOTS + 1, (BATCH, BLOCKS, 1))
    soft = rng.random((*SHAPE, TEACHER)) * (rng.random((*SHAPE, 1)) < 0.8)
    total = soft.sum(-1, keepdims=True)
    return {
        "tokens": rng.integers(-1, HOT, SHAPE).astype(np.int32),
        "inside": np.arange(SLOTS) < reach,
        "soft_tokens": np.argsort(rng.random((*SHAPE, HOT)))[..., :TEACHER].astype(np.int32),
        "soft_probs": (soft / np.where(total > 0, total, 1)).astype(np.float32),
    }


def reference(
    logits: np.ndarray, labels: Fields, distillation: float
) -> tuple[float, float, np.ndarray]:
    """Return summed loss, summed weight and the gradient of their ratio, slot by slot."""
    loss = weight = 0.0
    tokens, inside = labels["tokens"], labels["inside"]
    soft_tokens, soft_probs = labels["soft_tokens"], labels["soft_probs"]
    gradient = np.zeros(logits.shape)
    for b, n, k in np.ndindex(*SHAPE):
        token = int(tokens[b, n, k])
        if not inside[b, n, k] or token < 0:
            continue
        row = logits[b, n, k].astype(np.float64)
        probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        target = np.zeros(HOT)
        soft = np.zeros(HOT)
        target[token] = 1.0
        soft[soft_tokens[b, n, k]] = soft_probs[b, n, k]
        if soft.any():
            target = (1 - distillation) * target + distillation * soft
        position_weight = np.exp(-k / DECAY)
        loss -= position_weight * (target * np.log(probs)).sum()
        weight += position_weight
        gradient[b, n, k] = position_weight * (probs - target)
    return loss, weight, gradient / max(weight, 1e-6)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.5, 1.0]))
def test_loss_and_gradient(seed: int, distillation: float) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(0, 3, (*SHAPE, HOT)).astype(np.float32), random_labels(rng)
    (mean, metrics), gradient = loss_and_gradient(logits, labels, distillation)
    loss, weight, expected = reference(logits, labels, distillation)
    np.testing.assert_allclose(metrics.loss, loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics.weight, weight, rtol=1e-5)
    np.testing.assert_allclose(mean, loss / max(weight, 1e-6), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = random_labels(rng)
    tokens, inside = labels["tokens"], labels["inside"]
    logits = rng.normal(0, 1, (*SHAPE, HOT)).astype(np.float32)
    # Half of the slots say the right token, so that some blocks gain more than one.
    for index in np.argwhere(rng.random(SHAPE) < 0.5).tolist():
        logits[(*index, max(int(tokens[tuple(index)]), 0))] = 9.0
    (_, metrics), _ = loss_and_gradient(logits, labels, 0.0)
    correct, seen = [0] * SLOTS, [0] * SLOTS
    gained = blocks = 0
    for b, n in np.ndindex(BATCH, BLOCKS):
        right = [
            bool(inside[b, n, k] and logits[b, n, k].argmax() == tokens[b, n, k])
            for k in range(SLOTS)
        ]
        for k in range(SLOTS):
            correct[k] += right[k]
            seen[k] += bool(inside[b, n, k])
        if inside[b, n].all():
            blocks += 1
            gained += 1 + (right.index(False) if False in right else SLOTS)
    assert metrics.correct.tolist() == correct
    assert metrics.seen.tolist() == seen
    assert (float(metrics.gained), float(metrics.blocks)) == (gained, blocks)


def test_published_decays() -> None:
    decay = DFlashRecipe(DFlashSettings((Path("c"),), Path("o"))).decay
    assert [decay(size) for size in (8, 10, 16)] == [4.0, 5.0, 7.0]
    assert decay(4) == pytest.approx(2.0)
    assert decay(32) == pytest.approx(14.0)


def test_the_most_frequent_ids_are_hot_and_the_smaller_of_equals() -> None:
    counts = frequencies([[5, 5, 5, 1], [3, 3, 0, 1]], 8)
    assert counts.tolist() == [1, 2, 0, 2, 0, 3, 0, 0]
    hot = HotVocabulary.of(counts, 2)
    assert hot.ids.tolist() == [1, 5]
    assert hot.index.tolist() == [-1, 0, -1, -1, -1, 1, -1, -1]
    assert HotVocabulary.of(counts, 5).ids.tolist() == [0, 1, 2, 3, 5]
    assert HotVocabulary.of(counts, 99).ids.tolist() == list(range(8))


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_labels_are_what_follows_each_anchor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab, length = 12, 10
    batch = random_batch(rng, BATCH, length, width=1, vocab_size=vocab)
    starts = rng.integers(1, 5, BATCH).astype(np.int32)
    ends = (starts + rng.integers(2, 5, BATCH)).astype(np.int32)
    batch = replace(batch, starts=starts, ends=ends)
    hot = HotVocabulary.of(rng.integers(0, 5, vocab), HOT)
    # Anchors beyond the completion and the padding anchor among them.
    anchors = rng.integers(starts[:, None], length + 1, (BATCH, BLOCKS)).astype(np.int32)
    labels = {name: np.asarray(value) for name, value in look_up(batch, anchors, hot).items()}
    tokens, inside = labels["tokens"], labels["inside"]
    soft_tokens, soft_probs = labels["soft_tokens"], labels["soft_probs"]
    place = {int(token): index for index, token in enumerate(hot.ids.tolist())}
    for b, n, k in np.ndindex(*SHAPE):
        position = int(anchors[b, n]) + 1 + k
        assert inside[b, n, k] == (position < ends[b])
        if position >= ends[b]:
            continue
        assert tokens[b, n, k] == place.get(int(batch.token_ids[b, position]), -1)
        completion = position - int(starts[b])
        choices = zip(
            batch.teacher_ids[b, completion], batch.teacher_logits[b, completion], strict=True
        )
        expected = {place[int(t)]: np.exp(logit) for t, logit in choices if int(t) in place}
        found = zip(soft_tokens[b, n, k], soft_probs[b, n, k], strict=True)
        given_probs = {int(token): float(prob) for token, prob in found if prob > 0}
        assert given_probs == pytest.approx(
            {token: prob / sum(expected.values()) for token, prob in expected.items()}, rel=1e-4
        )


@pytest.mark.parametrize("seed", range(3))
def test_survival_weights_by_loops(seed: int) -> None:
    q = np.random.default_rng(seed).random(SHAPE)
    found = survival_weights(jnp.asarray(q))
    for block in np.ndindex(BATCH, BLOCKS):
        reached = [float(np.prod(0.5 * q[block][: m + 1] + 0.5)) for m in range(SLOTS)]
        for slot in range(SLOTS):
            assert float(found[(*block, slot)]) == pytest.approx(sum(reached[slot:]), rel=1e-5)


def test_survival_weights_are_those_of_the_true_tokens_and_have_no_gradient() -> None:
    rng = np.random.default_rng(0)
    fields = random_labels(rng)
    labels = Labels(**{name: jnp.asarray(value) for name, value in fields.items()})
    logits = jnp.asarray(rng.normal(size=(*SHAPE, HOT)), jnp.float32)

    def weighted(logits: Any) -> Any:
        return block_loss(logits, labels, decay=1.0, distillation=0.0, survival=True)

    log_probs = np.asarray(jax.nn.log_softmax(logits))
    usable = fields["inside"] & (fields["tokens"] >= 0)
    chosen = np.take_along_axis(log_probs, np.maximum(fields["tokens"], 0)[..., None], -1)[..., 0]
    weights = (
        np.asarray(survival_weights(jnp.asarray(np.where(usable, np.exp(chosen), 0)))) * usable
    )
    (loss, metrics), gradient = jax.value_and_grad(weighted, has_aux=True)(logits)
    assert float(metrics.weight) == pytest.approx(weights.sum(), rel=1e-5)
    assert float(loss) == pytest.approx(-(chosen * weights).sum() / weights.sum(), rel=1e-5)
    # With the weights as constants: softmax minus the true token, slot by slot.
    expected = np.exp(log_probs) * weights[..., None]
    for slot in np.argwhere(usable):
        expected[(*slot, fields["tokens"][tuple(slot)])] -= weights[tuple(slot)]
    np.testing.assert_allclose(gradient, expected / weights.sum(), atol=1e-6)


def test_without_a_teacher_the_served_tokens_are_all_labels() -> None:
    rng, vocab, length = np.random.default_rng(0), 12, 10
    batch = random_batch(rng, BATCH, length, width=1, vocab_size=vocab)
    nothing = np.zeros((BATCH, length, 0), np.int32)
    batch = replace(batch, teacher_ids=nothing, teacher_logits=nothing.astype(np.float16))
    anchors = rng.integers(2, length, (BATCH, BLOCKS)).astype(np.int32)
    found = look_up(batch, anchors, HotVocabulary.of(np.ones(vocab, np.int64), HOT))
    assert found["soft_probs"].shape == (*SHAPE, 0)
    logits = rng.normal(size=(*SHAPE, HOT)).astype(np.float32)
    (soft, _), _ = loss_and_gradient(logits, found, 0.5)
    (hard, _), _ = loss_and_gradient(logits, found, 0.0)
    assert soft == hard
    assert np.isfinite(soft)
