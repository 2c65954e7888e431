"""The compiled EAGLE-3 drafter, fed through the draft KV cache, against the float64 reference."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.drafter.builders import (
    CHAIN_SIZE,
    VOCAB,
    eagle3_drafter,
    make_method,
    target_parts,
)
from tests.drafter.reference import reference_chain
from tests.drafter.sampled import log_chance, random_sampling, reference_scores

from blockdraft_drafter.checkpoint import published_arrays
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.packing import KEPT_CHOICES, flatten_features, pack_blocks
from blockdraft_drafter.compiled.programs import SHARPNESS, Drafted
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_drafter.method import DraftRow, DraftTokens, Recycled
from blockdraft_models.sampling_options import GREEDY, Sampling


def method_of(
    drafter: Drafter[Eagle3], recompiled: list[bool] | None = None, **options: Any
) -> CompiledMethod:
    """A cold method compiles what a test uses, which is less than what serving may use."""
    tied = options.pop("tied", True)
    if recompiled is None:
        return make_method(drafter, target_parts(tied=tied), **options)
    method = make_method(drafter, target_parts(tied=tied), lambda: recompiled.append(True))
    method.warm_up()
    return method


VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "norm_before_residual": {"norm_before_residual": True},
    "fc_norm": {"fc_norm": True},
    "qk_norm": {"qk_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_output": {"norm_output": True},
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


def check(draft: DraftTokens, chosen: list[int]) -> None:
    assert list(draft) == chosen[: len(draft)]


def passes_made(drafted: Drafted) -> int:
    """At least so many: the result of a skipped pass repeats the tokens before it."""
    tokens: NDArray[np.int32] = np.asarray(drafted.token_ids)
    repeated = (tokens[:, 1:] == tokens[:, :-1]).all(axis=0)
    return len(repeated) + 1 - int(np.cumprod(repeated[::-1]).sum())


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_equal_the_reference(variant: str) -> None:
    """Two sequences in one batch, fed in pieces, with and without new rows at the draft."""
    drafter = eagle3_drafter(**VARIANTS[variant])
    recompiled: list[bool] = []
    tied = variant != "norm_before_residual"
    method = method_of(drafter, recompiled if variant == "published" else None, tied=tied)
    rng = np.random.default_rng(3)
    width = method.spec.feature_width
    lengths, pieces = {0: 9, 2: 140}, {0: [4, 1, 4], 2: [32, 32, 32, 32, 7, 5]}
    features = {s: rng.standard_normal((n, width)).astype(np.float32) for s, n in lengths.items()}
    tokens = {s: rng.integers(0, VOCAB, n + 1).tolist() for s, n in lengths.items()}

    def row(slot: int, start: int, stop: int, wanted: int) -> DraftRow:
        new = features[slot][start:stop]
        ids = tuple(tokens[slot][start:stop])
        return DraftRow(slot, start, new, tokens[slot][stop], wanted, ids)

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
    both = method.step([row(0, 9, 9, CHAIN_SIZE - 1), row(2, 140, 140, 3)])
    greedy = {s: expected(drafter, features[s], tokens[s], tied=tied)[0] for s in lengths}
    for slot, draft in zip(lengths, both, strict=True):
        check(draft, greedy[slot])
    assert len(both[0]) == CHAIN_SIZE - 1
    assert len(both[1]) == 3
    # Sampled ones beside greedy ones, in the same program.
    options, different = random.Random(1), 0
    for _ in range(8):
        mixed = [
            replace(row(slot, length, length, CHAIN_SIZE - 1), sampling=random_sampling(options))
            for slot, length in lengths.items()
        ]
        for one, draft in zip(mixed, method.step(mixed), strict=True):
            slot, sampling = one.slot, one.sampling
            known = features[slot], tokens[slot]
            check(draft, expected(drafter, *known, tied=tied, sampling=sampling)[0])
            different += list(draft) != greedy[slot]
    assert different > 1, "Gumbel noise should matter"
    assert not recompiled
    if variant == "published":
        assert len(method.shortest_step_seconds) == len(method.step_seconds) == 3


@dataclass(frozen=True)
class Pair:
    """A method that knows six positions of two sequences, in slots 0 and 3."""

    method: CompiledMethod
    whole: dict[int, tuple[list[int], np.ndarray]]
    tokens: dict[int, list[int]]

    def step(self, wanted: Sequence[int], least: float = 0.0) -> tuple[list[int], int]:
        """Draft from both; return the lengths of right drafts, and how many passes were made."""
        nothing = np.zeros((0, self.method.spec.feature_width), np.float32)
        rows = [
            DraftRow(slot, 6, nothing, tokens[6], length, least_chance=least)
            for (slot, tokens), length in zip(self.tokens.items(), wanted, strict=True)
        ]
        drafts = self.method.step(rows)
        for slot, draft in zip(self.tokens, drafts, strict=True):
            check(draft, self.whole[slot][0])
        new = self.method._pad(flatten_features(rows), 2 * self.method._programs.features_per_block)
        blocks = pack_blocks(rows, 2, self.method._recycled.of(rows, 2))
        passes = passes_made(self.method._draft(new, blocks))
        return [len(draft) for draft in drafts], passes


@pytest.fixture(scope="module")
def pair() -> Pair:
    drafter = eagle3_drafter()
    method = method_of(drafter)
    rng = np.random.default_rng(12)
    features, tokens = {}, {}
    for slot in (0, 3):
        features[slot] = rng.standard_normal((6, method.spec.feature_width)).astype(np.float32)
        tokens[slot] = rng.integers(0, VOCAB, 7).tolist()
    method.step(
        [DraftRow(s, 0, features[s], tokens[s][6], 0, tuple(tokens[s][:6])) for s in (0, 3)]
    )
    whole = {slot: expected(drafter, features[slot], tokens[slot]) for slot in (0, 3)}
    return Pair(method, whole, tokens)


def test_recycled_choices_change_what_is_drafted_where_they_apply(pair: Pair) -> None:
    nothing = np.zeros((0, pair.method.spec.feature_width), np.float32)
    row = DraftRow(3, 6, nothing, pair.tokens[3][6], 3)
    anchor, [plain] = row.anchor_token_id, pair.method.step([row])
    other = next(token for token in range(VOCAB) if token not in (anchor, *plain))
    # The anchor is at position 6. Many of the same are kept, so that they outweigh any logit.
    elsewhere = Recycled([8] * KEPT_CHOICES, [other] * KEPT_CHOICES, [other] * KEPT_CHOICES)
    assert pair.method.step([replace(row, recycled=elsewhere)]) == [plain]
    here = Recycled([7] * KEPT_CHOICES, [anchor] * KEPT_CHOICES, [other] * KEPT_CHOICES)
    [changed] = pair.method.step([replace(row, recycled=here)])
    assert changed[0] == other
    # They are kept for later drafts of the sequence, until later ones take their places.
    assert pair.method.step([row]) == [changed]
    assert pair.method.step([replace(row, recycled=elsewhere)]) == [plain]


def test_no_pass_is_made_for_tokens_that_are_not_wanted(pair: Pair) -> None:
    for wanted in itertools.product(range(1, CHAIN_SIZE), repeat=2):
        lengths, passes = pair.step(wanted)
        assert lengths == list(wanted)
        assert passes <= max(wanted)


def test_drafts_end_where_they_are_unlikely(pair: Pair) -> None:
    chances = [np.exp(np.cumsum(log_chances)) for _, log_chances in pair.whole.values()]
    # Below and above what 1, 2 and 3 tokens come to, of either sequence, and never.
    edges = [chance * side for each in chances for chance in each for side in (0.99, 1.01)]
    for least, wanted in itertools.product((0.0, *edges), (1, CHAIN_SIZE - 1)):
        lengths, passes = pair.step((wanted, wanted), least)
        # One token in any case, then one for each at which it is still likely enough.
        assert lengths == [1 + int((each[: wanted - 1] >= least).sum()) for each in chances]
        # As many passes as the longer of both, and no more.
        assert passes <= max(lengths)


@pytest.mark.parametrize("norm", ["fc_norm", "norm_before_fc"])
def test_projected_features_give_the_same_drafts(norm: str) -> None:
    drafter = eagle3_drafter(**{norm: True})
    method = method_of(drafter, projected=True)
    projection = method.spec.projection
    assert projection is not None
    raw_width = drafter.model.config.feature_width
    assert method.spec.feature_width == projection.width < raw_width
    rng = np.random.default_rng(7)
    features = rng.standard_normal((20, raw_width)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, 21).tolist()
    projected = np.asarray(jax.device_put(projection)(jnp.asarray(features)))
    for start, stop in ((0, 12), (12, 12), (12, 20)):
        ids = tuple(tokens[start:stop])
        row = DraftRow(0, start, projected[start:stop], tokens[stop], 4, ids)
        [draft] = method.step([row])
        check(draft, expected(drafter, features[:stop], tokens[: stop + 1])[0])


def test_a_slot_forgets_its_last_sequence() -> None:
    drafter = eagle3_drafter()
    method = method_of(drafter)
    rng = np.random.default_rng(5)
    width = method.spec.feature_width
    old, new = (rng.standard_normal((n, width)).astype(np.float32) for n in (30, 2))
    method.step([DraftRow(1, 0, old, 7, 4, (3,) * 30)])
    [draft] = method.step([DraftRow(1, 0, new, 9, 4, (5, 6))])
    check(draft, expected(drafter, new, [5, 6, 9])[0])
    # Nothing is known of a sequence of one token: a draft from an anchor alone is still a draft,
    # and does not depend on the sequence that had the slot.
    alone = [method.step([DraftRow(slot, 0, new[:0], 9, 4)])[0] for slot in (0, 1)]
    assert alone[0] == alone[1]
