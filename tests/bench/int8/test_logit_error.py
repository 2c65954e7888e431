"""The error of logits, by hand and against a sum over tokens."""

import math

import numpy as np
import pytest

from blockdraft_bench.int8.logit_error import LogitError, logit_error

LN3 = math.log(3)


def test_two_positions_by_hand() -> None:
    # Distributions 1/4, 3/4 against 1/2, 1/2; and twice the same one, moved by 2.
    reference = np.array([[0.0, LN3], [4.0, 3.0]], np.float32)
    other = np.array([[0.0, 0.0], [6.0, 5.0]], np.float32)
    error = logit_error(reference, other)
    assert error.positions == 2
    assert error.squared_error == pytest.approx(LN3**2 + 8)
    assert error.squared_reference == pytest.approx(LN3**2 + 25)
    assert error.relative_rms == pytest.approx(math.sqrt((LN3**2 + 8) / (LN3**2 + 25)))
    assert error.max_error == 2.0
    assert error.same_choices == 1
    assert error.same_choice_share == 0.5
    divergence = math.log(0.25 / 0.5) / 4 + 3 * math.log(0.75 / 0.5) / 4
    assert error.kl_nats == pytest.approx(divergence, rel=1e-6)
    assert error.mean_kl_nats == pytest.approx(divergence / 2, rel=1e-6)


def test_adding_is_pooling() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 5, (9, 30)).astype(np.float32)
    other = reference + rng.normal(0, 1, (9, 30)).astype(np.float32)
    whole = logit_error(reference, other)
    parts = LogitError()
    for rows in (slice(0, 1), slice(1, 1), slice(1, 6), slice(6, 9)):
        parts = parts.plus(logit_error(reference[rows], other[rows]))
    assert parts.positions == whole.positions == 9
    assert parts.max_error == whole.max_error
    assert parts.same_choices == whole.same_choices
    assert parts.squared_error == pytest.approx(whole.squared_error)
    assert parts.squared_reference == pytest.approx(whole.squared_reference)
    assert parts.kl_nats == pytest.approx(whole.kl_nats)


def test_divergence_is_the_sum_over_tokens() -> None:
    rng = np.random.default_rng(1)
    reference, other = (rng.normal(0, 3, (4, 7)).astype(np.float32) for _ in range(2))
    expected = 0.0
    for wanted, found in zip(reference.tolist(), other.tolist(), strict=True):
        p = [math.exp(logit) / sum(map(math.exp, wanted)) for logit in wanted]
        q = [math.exp(logit) / sum(map(math.exp, found)) for logit in found]
        expected += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert logit_error(reference, other).kl_nats == pytest.approx(expected)


def test_equal_and_large_logits() -> None:
    logits = np.array([[1e4, -1e4, 0.0]], np.float32)
    error = logit_error(logits, logits)
    assert (error.relative_rms, error.max_error, error.kl_nats) == (0.0, 0.0, 0.0)
    assert error.same_choice_share == 1.0
    # Neither overflows nor is undefined: a sure choice that the other finds impossible.
    far = logit_error(logits, -logits)
    assert far.kl_nats == pytest.approx(2e4)
    assert far.max_error == 2e4
