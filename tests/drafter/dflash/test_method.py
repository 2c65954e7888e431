"""The compiled drafter, fed through the draft KV cache, against the float64 reference."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from tests.drafter.builders import (
    ARCHITECTURES,
    DFLASH2,
    TARGET,
    VOCAB,
    drafter_config,
    make_method,
    random_drafter,
    target_parts,
)
from tests.drafter.reference import reference_draft
from tests.drafter.sampled import random_sampling, reference_scores

from blockdraft_drafter.checkpoint import build, published_arrays
from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.packing import PackedFeatures, pack_blocks
from blockdraft_drafter.compiled.programs import SHARPNESS, DraftWeights
from blockdraft_drafter.compiled.recycling import RecycledOfSlots
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.model import DFLASH, DFlash, denoise
from blockdraft_drafter.method import DraftCacheLostError, DraftRow, DraftTokens, MethodLostError
from blockdraft_models.sampling_options import GREEDY, Sampling
from blockdraft_models.weights.loading import EmbeddingAndHead

VARIANTS: dict[str, dict[str, Any]] = {
    **ARCHITECTURES,
    "block_of_6": {"block_size": 6},
    "from_anchor": {"sample_from_anchor": True},
    "from_anchor_markov": {"sample_from_anchor": True, "markov_rank": 5},
    "convolutions": {"conv_group_size": 8},
    "from_anchor_convolutions": {"conv_group_size": 4, "sample_from_anchor": True},
    "dflash2": {"block_size": 6, **DFLASH2},
    "from_anchor_causal_sliding": {
        "sample_from_anchor": True,
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 2,
        "is_causal": True,
    },
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A method and what the reference needs."""

    drafter: Drafter[DFlash]
    method: CompiledMethod
    tied: bool
    recompiled: list[bool]

    def expected(
        self, features: NDArray[Any], anchor: int, sampling: Sampling = GREEDY
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        target = target_parts(tied=self.tied)
        config = self.drafter.model.config
        return reference_draft(
            published_arrays(self.drafter.model),
            config,
            np.asarray(target.embedding),
            None if target.head is None else np.asarray(target.head),
            features,
            anchor,
            config.block_size,
            lambda position, logits: int(self.scores(logits, position, sampling).argmax()),
        )

    def scores(
        self, logits: NDArray[np.float64], position: int, sampling: Sampling
    ) -> NDArray[np.float64]:
        return reference_scores(logits, position, sampling, np.arange(VOCAB), VOCAB, SHARPNESS)

    def check(
        self,
        draft: DraftTokens,
        features: NDArray[Any],
        anchor: int,
        sampling: Sampling = GREEDY,
    ) -> None:
        tokens, _ = self.expected(features, anchor, sampling)
        assert list(draft) == tokens[: len(draft)].tolist()


def make_setup(architecture: str, tied: bool = True, warm: bool = False, **overrides: Any) -> Setup:
    """A cold method compiles what a test uses, which is less than what serving may use."""
    drafter = random_drafter(drafter_config(**VARIANTS[architecture]))
    recompiled: list[bool] = []
    method = make_method(
        drafter,
        target_parts(tied=tied),
        on_recompilation=lambda: recompiled.append(True),
        **overrides,
    )
    if warm:
        method.warm_up()
    return Setup(drafter, method, tied, recompiled)


@pytest.fixture(scope="module")
def setups() -> Callable[..., Setup]:
    made: dict[tuple[str, bool], Setup] = {}

    def get(architecture: str = "published", tied: bool = True) -> Setup:
        if (architecture, tied) not in made:
            warm = (architecture, tied) == ("published", True)
            made[architecture, tied] = make_setup(architecture, tied, warm)
        return made[architecture, tied]

    return get


def features_of(setup: Setup, rows: int, seed: int) -> NDArray[Any]:
    width = setup.method.spec.feature_width
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def split(rows: int, rng: np.random.Generator, most: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < rows:
        sizes.append(min(int(rng.integers(1, most + 1)), rows - sum(sizes)))
    return sizes


# Of the pass alone: a Markov head comes after it, and so does what bounds the logits.
@pytest.mark.parametrize(
    "architecture", [name for name in VARIANTS if "markov" not in name and name != "dflash2"]
)
def test_logits_equal_the_reference(architecture: str) -> None:
    length = 200
    setup, target = make_setup(architecture), target_parts()
    model, programs = setup.drafter.model, setup.method._programs
    features = features_of(setup, length, seed=length)
    positions = jnp.arange(length, dtype=jnp.int32)
    new = PackedFeatures(jnp.asarray(features), jnp.ones(length, jnp.int32), positions, positions)
    weights = DraftWeights(nnx.state(model), target, None)
    cache = programs.append(weights, buffer.allocate(programs.cache()), new)
    row = DraftRow(1, length, features[:0], 7, 1)
    blocks = jax.tree.map(
        jnp.asarray, pack_blocks([row], 1, RecycledOfSlots(2, VOCAB, None).of([row], 1))
    )
    hidden = jax.jit(lambda cache, blocks: denoise(model, target, cache, blocks))(cache, blocks)
    logits = np.asarray(target.logits(hidden[model.config.first_drafting_input :]))
    expected = setup.expected(features, 7)[1]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [
        ("published", True),
        ("published", False),
        ("sliding", True),
        ("from_anchor_markov", False),
        ("dflash2", False),
    ],
)
def test_drafts_equal_the_reference_at_every_length(
    setups: Callable[..., Setup], architecture: str, tied: bool
) -> None:
    setup = setups(architecture, tied)
    full = setup.method.spec.block_size - 1
    features = features_of(setup, 140, seed=3)
    sent = 0
    drafts = set()
    # 128 is the width of an attention chunk; the lengths lie on both sides of its edge.
    for length in (0, 1, 5, 30, 60, 90, 120, 127, 128, 129, 140):
        row = DraftRow(1, sent, features[sent:length], 7, full)
        (draft,) = setup.method.step([row])
        sent = length
        setup.check(draft, features[:length], 7)
        drafts.add(draft)
    assert len(drafts) > 3, "the drafts should depend on the context"


@pytest.mark.parametrize(
    "architecture", ["published", "from_anchor", "from_anchor_markov", "dflash2"]
)
def test_sampled_drafts_equal_the_reference(
    setups: Callable[..., Setup], architecture: str
) -> None:
    setup = setups(architecture)
    full = setup.method.spec.block_size - 1
    features, options = features_of(setup, 60, seed=5), random.Random(4)
    sent, different = 0, 0
    for length in (0, 1, 7, 20, 33, 47, 60):
        for _ in range(3):
            sampling = random_sampling(options)
            row = DraftRow(1, sent, features[sent:length], 7, full, sampling=sampling)
            (draft,) = setup.method.step([row])
            sent = length
            setup.check(draft, features[:length], 7, sampling)
            greedy = setup.expected(features[:length], 7)[0].tolist()
            different += list(draft) != greedy
    assert different > 5, "Gumbel noise should matter"


@pytest.mark.parametrize(
    ("architecture", "seed"), [("published", 0), ("published", 1), ("dflash2", 0)]
)
def test_arrival_order_batch_and_slot_do_not_matter(
    setups: Callable[..., Setup], architecture: str, seed: int
) -> None:
    setup = setups(architecture)
    rng, options = np.random.default_rng(seed), random.Random(seed)
    slots = rng.permutation(4)[: rng.integers(2, 5)].tolist()
    features = {slot: features_of(setup, int(rng.integers(20, 90)), seed + slot) for slot in slots}
    arrivals = {slot: split(len(features[slot]), rng, 32) for slot in slots}
    sent = dict.fromkeys(slots, 0)
    while any(arrivals.values()):
        present = [slot for slot in rng.permutation(slots).tolist() if arrivals[slot]]
        present = present[: rng.integers(1, len(present) + 1)]
        rows = []
        for slot in present:
            start, count = sent[slot], arrivals[slot].pop(0)
            sent[slot] = start + count
            wanted = int(rng.integers(0, 4))
            new = features[slot][start : sent[slot]]
            sampling = random_sampling(options)
            rows.append(DraftRow(slot, start, new, 9, wanted, sampling=sampling))
        drafts = setup.method.step(rows)
        for row, draft in zip(rows, drafts, strict=True):
            assert len(draft) == row.draft_length
            setup.check(draft, features[row.slot][: sent[row.slot]], 9, row.sampling)
    assert not setup.recompiled


def test_a_slot_is_used_to_its_last_position_and_shows_nothing_of_it_later(
    setups: Callable[..., Setup],
) -> None:
    setup = setups()
    long, short = features_of(setup, 300, 1), features_of(setup, 3, 2)
    for start in range(0, 288, 32):
        setup.method.step([DraftRow(3, start, long[start : start + 32], 0, 0)])
    for row, features in (
        (DraftRow(3, 288, long[288:], 5, 3), long),
        (DraftRow(3, 0, short, 5, 3), short),
    ):
        (draft,) = setup.method.step([row])
        setup.check(draft, features, 5)


def test_padding_touches_no_slot(setups: Callable[..., Setup]) -> None:
    setup = setups()
    before = [np.asarray(array) for layer in setup.method._cache for array in layer]
    setup.method.step([DraftRow(2, 40, features_of(setup, 3, 5), 5, 2)])
    setup.method.step([DraftRow(2, 43, features_of(setup, 9, 6), 5, 0)])
    after = [np.asarray(array) for layer in setup.method._cache for array in layer]
    for old, new in zip(before, after, strict=True):
        changed = np.argwhere((old != new).any(axis=(1, 3)))
        assert {tuple(index) for index in changed.tolist()} == {(2, p) for p in range(40, 52)}


def test_warm_up_measures_every_batch_size(setups: Callable[..., Setup]) -> None:
    method = setups().method
    assert len(method.step_seconds) == 3  # batches of 1, 2 and 4
    assert all(seconds > 0 for seconds in method.step_seconds)
    assert not method.shortest_step_seconds, "a block takes as long whatever is wanted of it"


def test_a_shape_missed_by_warm_up_is_counted() -> None:
    setup = make_setup("published", warm=True, max_sequences=1)
    setup.method._executables.clear()
    for _ in range(2):
        setup.method.step([DraftRow(0, 0, features_of(setup, 0, 0), 1, 1)])
    assert setup.recompiled == [True]


def drafts(draft_ids: np.ndarray | None, *, tied: bool) -> list[tuple[int, ...]]:
    """Draft from a few anchors over one random context."""
    size = None if draft_ids is None else len(draft_ids)
    drafter = random_drafter(drafter_config(draft_vocab_size=size))
    drafter = dataclasses.replace(drafter, draft_ids=draft_ids)
    setup = Setup(drafter, make_method(drafter, target_parts(tied=tied)), tied, [])
    features = features_of(setup, 9, 3)
    rows = [DraftRow(slot, 0, features, anchor, 3) for slot, anchor in enumerate((5, 17, 40))]
    return setup.method.step(rows)


@pytest.mark.parametrize("tied", [True, False])
def test_drafts_the_likeliest_of_its_own_vocabulary(tied: bool) -> None:
    free = drafts(None, tied=tied)
    likeliest = np.unique(np.concatenate([np.array(tokens) for tokens in free]))
    assert drafts(likeliest.astype(np.int32), tied=tied) == free
    without = np.setdiff1d(np.arange(VOCAB), likeliest[:1]).astype(np.int32)
    for tokens, unrestricted in zip(drafts(without, tied=tied), free, strict=True):
        assert likeliest[0] not in tokens
        for token, wanted in zip(tokens, unrestricted, strict=True):
            assert token == wanted or wanted == likeliest[0]


def test_bfloat16_features_enter_as_they_are() -> None:
    drafter = random_drafter(drafter_config())
    bfloat16 = np.dtype(jax.numpy.bfloat16)
    method = make_method(drafter, target_parts(), feature_dtype=bfloat16)
    features = np.random.default_rng(0).standard_normal((10, method.spec.feature_width))
    rounded = features.astype(bfloat16)
    (draft,) = method.step([DraftRow(0, 0, rounded, 5, 3)])
    setup = Setup(drafter, method, True, [])
    setup.check(draft, rounded.astype(np.float32), 5)


@pytest.mark.parametrize("architecture", ["published", "from_anchor_markov"])
def test_projected_features_give_the_same_drafts(architecture: str) -> None:
    """Either process may apply the first linear map: in float32 nothing is rounded on the way."""
    raw = make_setup(architecture)
    method = make_method(raw.drafter, target_parts(), projected=True)
    spec = method.spec
    assert spec.projection is not None
    assert spec.feature_width == spec.projection.width == TARGET.config.hidden_size
    features = features_of(raw, 40, 1)
    projected = np.asarray(jax.device_put(spec.projection)(jnp.asarray(features)))
    for start, stop, wanted in ((0, 9, 3), (9, 9, 2), (9, 40, 3)):
        (draft,) = method.step([DraftRow(1, start, projected[start:stop], 5, wanted)])
        raw.check(draft, features[:stop], 5)


def test_bfloat16_models_keep_a_float32_cache_on_cpu() -> None:
    config = drafter_config(markov_rank=3)
    exact = random_drafter(config)
    arrays = published_arrays(exact.model)
    narrow = dataclasses.replace(exact, model=build(DFLASH, config, arrays, dtype=jnp.bfloat16))
    parts = target_parts()
    matrices = EmbeddingAndHead(parts.embedding.astype(jnp.bfloat16), None)
    methods = make_method(exact, parts), make_method(narrow, matrices)
    assert all(part.dtype == jnp.float32 for layer in methods[1]._cache for part in layer)
    features = np.random.default_rng(0).standard_normal((70, config.feature_width))
    row = DraftRow(0, 0, features.astype(np.float32), 5, 3)
    [wide], [rounded] = (method.step([row]) for method in methods)
    assert rounded[0] == wide[0]


def test_a_failed_step_loses_the_cache_and_without_memory_the_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = make_setup("published", max_sequences=1)
    row = DraftRow(0, 0, features_of(setup, 2, 0), 5, 3)

    def fail(*arguments: Any) -> Any:
        jax.tree.map(lambda array: array.delete(), setup.method._cache)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    with monkeypatch.context() as patched:
        patched.setitem(setup.method._executables, ("draft", 1), fail)
        with pytest.raises(DraftCacheLostError, match="RESOURCE_EXHAUSTED"):
            setup.method.step([row])
    (draft,) = setup.method.step([row])
    setup.check(draft, row.features, 5)

    monkeypatch.setitem(setup.method._executables, ("draft", 1), fail)
    monkeypatch.setattr(buffer, "allocate", fail)
    with pytest.raises(MethodLostError, match="no new draft KV cache"):
        setup.method.step([row])
    # What is left of the old one does not stand in the way of another try.
    assert setup.method._cache is None
