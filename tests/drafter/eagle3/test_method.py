"""The compiled EAGLE-3 drafter, fed through the context buffer, against the float64 reference."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from tests.drafter.builders import TARGET, room, target_parts
from tests.drafter.reference_eagle3 import reference_chain
from tests.drafter.sampled import log_chance, random_sampling, reference_scores

from blockdraft_drafter.checkpoint import build, fingerprint, published_arrays
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.packing import flatten_features, pack_blocks
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.compiled.steps import SHARPNESS, Drafted
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_drafter.method import GREEDY, ContextRow, Proposal, Sampling

BLOCK_SIZE = 5
VOCAB = TARGET.config.vocab_size


def eagle3_drafter(
    *,
    draft_vocab: int | None = None,
    own_head: bool = False,
    own_embedding: bool = False,
    seed: int = 0,
    **overrides: Any,
) -> Drafter[Eagle3]:
    """A random drafter whose norms are random too, so that each of them matters."""
    config = replace(
        Eagle3Config.default_for(TARGET.config, block_size=BLOCK_SIZE),
        draft_vocab_size=draft_vocab,
        **overrides,
    )
    noise = np.random.default_rng(seed)
    arrays = published_arrays(Eagle3(config, rngs=nnx.Rngs(seed)))
    for name, array in arrays.items():
        if array.ndim == 1:
            arrays[name] = array + 0.3 * noise.standard_normal(array.shape).astype(np.float32)
    draft_ids, embedding, head = None, None, None
    if draft_vocab is not None:
        draft_ids = np.sort(noise.permutation(VOCAB)[:draft_vocab]).astype(np.int32)
    if own_head:
        shape = (draft_vocab or VOCAB, config.decoder.hidden_size)
        head = noise.standard_normal(shape).astype(np.float32)
    if own_embedding:
        shape = (VOCAB, config.decoder.hidden_size)
        embedding = 0.1 * noise.standard_normal(shape).astype(np.float32)
    model = build(EAGLE3, config, arrays, dtype=jnp.float32)
    return Drafter(EAGLE3, model, fingerprint(config, arrays), draft_ids, embedding, head)


def eagle3_method(
    drafter: Drafter[Eagle3],
    on_recompilation: Callable[[], None] = lambda: None,
    *,
    tied: bool = True,
    **overrides: Any,
) -> CompiledMethod:
    method = CompiledMethod(drafter, target_parts(tied=tied), room(**overrides), on_recompilation)
    method.warm_up()
    return method


VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "norm_before_residual": {"norm_before_residual": True},
    "draft_vocabulary": {"draft_vocab": 40},
    "own_head": {"draft_vocab": 24, "own_head": True},
    # The head stays the target's, be it tied to the target's embedding.
    "own_embedding": {"own_embedding": True},
}


def expected(
    drafter: Drafter[Eagle3],
    features: np.ndarray,
    tokens: list[int],
    *,
    tied: bool = True,
    sampling: Sampling = GREEDY,
) -> tuple[list[int], np.ndarray]:
    """The reference's tokens and the logarithm of how likely each is right."""
    target = target_parts(tied=tied)
    ids = np.arange(VOCAB) if drafter.draft_ids is None else drafter.draft_ids
    rows = target.embedding if target.head is None else target.head
    head = np.asarray(rows)[ids] if drafter.head is None else drafter.head
    config = drafter.model.config

    def scores(position: int, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return reference_scores(logits, position, sampling, ids, VOCAB, SHARPNESS)

    chosen, logits = reference_chain(
        published_arrays(drafter.model),
        config,
        np.asarray(target.embedding if drafter.embedding is None else drafter.embedding),
        head,
        ids.tolist(),
        features,
        tokens,
        lambda position, logits: int(scores(position, logits).argmax()),
    )
    first = len(features) + 1
    log_chances = [
        log_chance(scores(first + index, line), sampling) for index, line in enumerate(logits)
    ]
    return chosen, np.array(log_chances)


def check(proposal: Proposal, chosen: list[int]) -> None:
    assert list(proposal.token_ids) == chosen[: len(proposal.token_ids)]


def passes_made(drafted: Drafted) -> int:
    """At least so many: what stands in the place of a pass repeats the tokens before it."""
    tokens: NDArray[np.int32] = np.asarray(drafted.token_ids)
    repeated = (tokens[:, 1:] == tokens[:, :-1]).all(axis=0)
    return len(repeated) + 1 - int(np.cumprod(repeated[::-1]).sum())


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_equal_the_reference(variant: str) -> None:
    """Two sequences in one batch, fed in pieces, with and without new rows at the draft."""
    drafter = eagle3_drafter(**VARIANTS[variant])
    recompiled: list[bool] = []
    tied = variant != "norm_before_residual"
    method = eagle3_method(drafter, tied=tied, on_recompilation=lambda: recompiled.append(True))
    rng = np.random.default_rng(3)
    width = method.spec.feature_width
    lengths, pieces = {0: 9, 2: 140}, {0: [4, 1, 4], 2: [32, 32, 32, 32, 7, 5]}
    features = {s: rng.standard_normal((n, width)).astype(np.float32) for s, n in lengths.items()}
    tokens = {s: rng.integers(0, VOCAB, n + 1).tolist() for s, n in lengths.items()}

    def row(slot: int, start: int, stop: int, wanted: int) -> ContextRow:
        new = features[slot][start:stop]
        ids = tuple(tokens[slot][start:stop])
        return ContextRow(slot, start, new, tokens[slot][stop], wanted, ids)

    sent = {0: 0, 2: 0}
    for step in range(6):
        rows = []
        for slot, sizes in pieces.items():
            if step < len(sizes):
                rows.append(row(slot, sent[slot], sent[slot] + sizes[step], 0 if step % 2 else 2))
                sent[slot] += sizes[step]
        method.step(rows)
    assert sent == lengths
    # Nothing new to append: drafting starts from what was kept of the last position.
    both = method.step([row(0, 9, 9, BLOCK_SIZE - 1), row(2, 140, 140, 3)])
    for slot, proposal in zip((0, 2), both, strict=True):
        check(proposal, expected(drafter, features[slot], tokens[slot], tied=tied)[0])
    assert len(both[0].token_ids) == BLOCK_SIZE - 1
    assert len(both[1].token_ids) == 3
    # Sampled ones beside greedy ones, in the same program.
    options, different = random.Random(1), 0
    for _ in range(8):
        mixed = [
            replace(row(slot, length, length, BLOCK_SIZE - 1), sampling=random_sampling(options))
            for slot, length in lengths.items()
        ]
        for one, proposal in zip(mixed, method.step(mixed), strict=True):
            slot, sampling = one.slot, one.sampling
            known = features[slot], tokens[slot]
            check(proposal, expected(drafter, *known, tied=tied, sampling=sampling)[0])
            different += list(proposal.token_ids) != expected(drafter, *known, tied=tied)[0]
    assert different > 1, "the noise should matter"
    assert not recompiled


def test_no_pass_is_made_for_tokens_that_nobody_wants() -> None:
    drafter = eagle3_drafter()
    method = eagle3_method(drafter)
    assert len(method.shortest_step_seconds) == len(method.step_seconds)
    rng = np.random.default_rng(11)
    width = method.spec.feature_width
    features = {slot: rng.standard_normal((6, width)).astype(np.float32) for slot in (0, 3)}
    tokens = {slot: rng.integers(0, VOCAB, 7).tolist() for slot in (0, 3)}
    method.step(
        [ContextRow(s, 0, features[s], tokens[s][6], 0, tuple(tokens[s][:6])) for s in (0, 3)]
    )
    nothing = np.zeros((0, width), np.float32)
    for wanted in itertools.product(range(1, BLOCK_SIZE), repeat=2):
        rows = [
            ContextRow(slot, 6, nothing, tokens[slot][6], length)
            for slot, length in zip((0, 3), wanted, strict=True)
        ]
        for row, proposal in zip(rows, method.step(rows), strict=True):
            assert len(proposal.token_ids) == row.draft_length
            check(proposal, expected(drafter, features[row.slot], tokens[row.slot])[0])
        new = method._pad(flatten_features(rows), 2 * method._programs.features_per_block)
        assert passes_made(method._draft(new, pack_blocks(rows, 2))) <= max(wanted)


def test_drafts_end_where_they_are_unlikely() -> None:
    drafter = eagle3_drafter()
    method = eagle3_method(drafter)
    rng = np.random.default_rng(12)
    width = method.spec.feature_width
    features = {slot: rng.standard_normal((6, width)).astype(np.float32) for slot in (0, 3)}
    tokens = {slot: rng.integers(0, VOCAB, 7).tolist() for slot in (0, 3)}
    method.step(
        [ContextRow(s, 0, features[s], tokens[s][6], 0, tuple(tokens[s][:6])) for s in (0, 3)]
    )
    nothing = np.zeros((0, width), np.float32)
    whole = {slot: expected(drafter, features[slot], tokens[slot]) for slot in (0, 3)}
    chances = {slot: np.exp(np.cumsum(log_chances)) for slot, (_, log_chances) in whole.items()}
    # Below and above what 1, 2 and 3 tokens come to, of either sequence, and never.
    edges = [chance * side for each in chances.values() for chance in each for side in (0.99, 1.01)]
    for least, wanted in itertools.product((0.0, *edges), (1, BLOCK_SIZE - 1)):
        rows = [
            ContextRow(slot, 6, nothing, tokens[slot][6], wanted, least_chance=least)
            for slot in (0, 3)
        ]
        for row, proposal in zip(rows, method.step(rows), strict=True):
            # One token in any case, then one for each at which it is still likely enough.
            count = 1 + int((chances[row.slot][: wanted - 1] >= least).sum())
            assert len(proposal.token_ids) == count
            check(proposal, whole[row.slot][0])
        # As many passes as the longer of both, and no more.
        new = method._pad(flatten_features(rows), 2 * method._programs.features_per_block)
        drafted = method._draft(new, pack_blocks(rows, 2))
        passes = int(drafted.counts.max())
        assert passes_made(drafted) <= passes


def test_projected_features_give_the_same_drafts() -> None:
    drafter = eagle3_drafter()
    raw, method = eagle3_method(drafter), eagle3_method(drafter, projected=True)
    projection = method.spec.projection
    assert projection is not None
    assert method.spec.feature_width == projection.width < raw.spec.feature_width
    rng = np.random.default_rng(7)
    features = rng.standard_normal((20, raw.spec.feature_width)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, 21).tolist()
    projected = np.asarray(jax.device_put(projection)(jnp.asarray(features)))
    for start, stop in ((0, 12), (12, 12), (12, 20)):
        ids = tuple(tokens[start:stop])
        row = ContextRow(0, start, projected[start:stop], tokens[stop], 4, ids)
        [proposal] = method.step([row])
        check(proposal, expected(drafter, features[:stop], tokens[: stop + 1])[0])


def test_a_slot_forgets_its_last_sequence() -> None:
    drafter = eagle3_drafter()
    method = eagle3_method(drafter)
    rng = np.random.default_rng(5)
    width = method.spec.feature_width
    old, new = (rng.standard_normal((n, width)).astype(np.float32) for n in (30, 2))
    method.step([ContextRow(1, 0, old, 7, 4, (3,) * 30)])
    [proposal] = method.step([ContextRow(1, 0, new, 9, 4, (5, 6))])
    check(proposal, expected(drafter, new, [5, 6, 9])[0])
    # Nothing is known of a sequence of one token: a draft from an anchor alone is still a draft,
    # and does not depend on whose slot it was.
    alone = [method.step([ContextRow(slot, 0, new[:0], 9, 4)])[0].token_ids for slot in (0, 1)]
    assert alone[0] == alone[1]
