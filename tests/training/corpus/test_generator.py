"""Batched generation gives what decoding one prompt at a time gives."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import SamplingArrays, seed_words
from blockdraft_training.corpus.decoding import choose
from blockdraft_training.corpus.generator import (
    BatchGenerator,
    BatchShape,
    FinishedCompletion,
    Request,
)
from blockdraft_verifier.device.accept import choose_tokens

VOCAB = 64
END = 7
CONFIG = tiny_config(num_layers=2, vocab_size=VOCAB, bos_token_id=1, eos_token_ids=(END,))
SHAPES = BatchShape(rows=3, max_prompt_tokens=40, max_tokens=30, steps=4)
# Shorter and longer than their paddings; the longest completions fill their rows.
LENGTHS = (1, 40, 5, 33, 12, 32, 7, 40)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(CONFIG)


@pytest.fixture(scope="module")
def generator(decoder: Decoder) -> BatchGenerator:
    return BatchGenerator(decoder, SHAPES, (END,), dtype=jnp.float32)


def requests(temperatures: Sequence[float] = (0.0, 0.8)) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(
            f"r{index}",
            tuple(int(token) for token in rng.integers(8, VOCAB, length)),
            temperatures[index % len(temperatures)],
            seed=2**64 - 1 - index,
        )
        for index, length in enumerate(LENGTHS)
    ]


PADDED = 80


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph: nnx.GraphDef[Decoder], weights: Any, ids: jax.Array) -> jax.Array:
    decoder = nnx.merge(graph, weights)
    positions = jnp.arange(PADDED, dtype=jnp.int32)
    caches = [None] * CONFIG.num_layers
    return decoder.logits(decoder(ids, positions, caches, DenseAttend(1, PADDED)).hidden)


def reference(decoder: Decoder, request: Request, max_tokens: int) -> tuple[int, ...]:
    """Decode without a cache or a batch: the whole sequence again for every token."""
    tokens = list(request.prompt)
    while len(tokens) - len(request.prompt) < max_tokens:
        ids = np.zeros(PADDED, np.int32)
        ids[: len(tokens)] = tokens
        logits = _logits(*nnx.split(decoder), jnp.asarray(ids))[len(tokens) - 1]
        if request.temperature > 0:
            words = jnp.asarray(seed_words(request.seed))
            key = jax.random.fold_in(jax.random.wrap_key_data(words), len(tokens))
            logits = logits / request.temperature + jax.random.gumbel(key, logits.shape)
        tokens.append(int(jnp.argmax(logits)))
        if tokens[-1] == END:
            break
    return tuple(tokens[len(request.prompt) :])


def by_id(completions: Sequence[FinishedCompletion]) -> dict[str, tuple[int, ...]]:
    assert len({completion.request.id for completion in completions}) == len(completions)
    return {completion.request.id: completion.token_ids for completion in completions}


def test_answers_are_those_of_one_by_one(decoder: Decoder, generator: BatchGenerator) -> None:
    # More requests than rows, of different lengths: rows are refilled in the middle of others.
    asked = requests()
    completions = by_id(list(generator.generate(asked)))
    expected = {r.id: reference(decoder, r, SHAPES.max_tokens) for r in asked}
    assert completions == expected
    # The case is not trivial: some end by themselves, some are cut, none repeat each other.
    ends = [completion[-1] == END for completion in expected.values()]
    assert any(ends)
    assert not all(ends)


def test_cut_says_whether_an_answer_ended(generator: BatchGenerator) -> None:
    for completion in generator.generate(requests()):
        assert completion.cut == (completion.token_ids[-1] != END)
        assert len(completion.token_ids) <= SHAPES.max_tokens
        assert END not in completion.token_ids[:-1]


# Of 96 rows, three start at once, and the last time two.
@pytest.mark.parametrize("rows", [1, 5, 96])
def test_batch_size_makes_no_difference(
    decoder: Decoder, generator: BatchGenerator, rows: int
) -> None:
    shapes = BatchShape(rows, SHAPES.max_prompt_tokens, SHAPES.max_tokens, steps=3)
    other = BatchGenerator(decoder, shapes, (END,), dtype=jnp.float32)
    assert by_id(list(other.generate(requests()))) == by_id(list(generator.generate(requests())))


def test_abandoned_answers_leave_nothing(generator: BatchGenerator) -> None:
    together = by_id(list(generator.generate(requests())))
    next(iter(generator.generate(requests((0.8,)))))
    assert by_id(list(generator.generate(requests()))) == together


def test_seeds_differ(generator: BatchGenerator) -> None:
    prompt = requests()[0].prompt
    asked = [Request(str(seed), prompt, 1.0, seed) for seed in range(4)]
    assert len(set(by_id(list(generator.generate(asked))).values())) == 4


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_request_may_be_shorter(decoder: Decoder, generator: BatchGenerator, limit: int) -> None:
    [request] = [Request("short", (9, 10, 11), 0.0, 0, limit)]
    [completion] = generator.generate([request])
    assert completion.token_ids == reference(decoder, request, limit)


def test_an_answer_may_be_its_end_only(decoder: Decoder) -> None:
    request = Request("r", (9, 10, 11), 0.0, 0)
    first = reference(decoder, request, 1)
    generator = BatchGenerator(decoder, SHAPES, first, dtype=jnp.float32)
    [completion] = generator.generate([request])
    assert completion.token_ids == first
    assert not completion.cut


def test_nothing_asked(generator: BatchGenerator) -> None:
    assert list(generator.generate([])) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("long", (9,) * 41, 0.0, 0), "prompt long has 41 tokens, not 1 to 40"),
        (Request("none", (), 0.0, 0), "prompt none has 0 tokens"),
        (Request("far", (9,) * 40, 0.0, 0, 31), "31 of its completion do not fit into 70"),
        (Request("zero", (9,), 0.0, 0, 0), "0 of its completion do not fit"),
        (Request("seed", (9,), 0.5, -1), "a seed must be from 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    generator: BatchGenerator, request_: Request, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(generator.generate([request_]))


def test_choices_are_those_of_serving() -> None:
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(5, 97)), jnp.float32)
    position = jnp.asarray([0, 5, 5, 900, 31], jnp.int32)
    temperature = jnp.asarray([0.7, 0.0, 1.3, 0.2, 1.0], jnp.float32)
    seed = jnp.asarray(rng.integers(0, 2**32, (5, 2)), jnp.uint32)
    rows = jnp.arange(5, dtype=jnp.int32)
    options = SamplingArrays(temperature, rows * 0, jnp.ones(5), jnp.zeros(5), seed)
    expected = choose_tokens(logits, position, rows, options)
    np.testing.assert_array_equal(choose(logits, position, temperature, seed), expected)
