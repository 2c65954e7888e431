"""The compiled steps of a drafter: compile every shape beforehand, then only run."""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.packing import (
    PackedBlocks,
    PackedFeatures,
    flatten_features,
    pack_blocks,
    pad_features,
    split_features,
)
from blockdraft_drafter.compiled.programs import Capacity, Drafted, DraftWeights, ProgramKind
from blockdraft_drafter.compiled.recycling import RecycledOfSlots
from blockdraft_drafter.method import (
    DraftCacheLostError,
    DraftRow,
    DraftTokens,
    MethodLostError,
    MethodSpec,
    all_finite,
)
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.precision import cache_dtype
from blockdraft_models.processor import usable_cores
from blockdraft_models.weights.loading import EmbeddingAndHead
from blockdraft_models.words import Words, to_words

# A context this long is typical of a chat; the measured step seconds include attending to it.
_MEASURED_CONTEXT = 512
_MEASURED_RUNS = 5


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """Weights that fit the compiled steps, on the devices, and the identity of their drafter."""

    weights: DraftWeights
    fingerprint: str
    trained: bool


class CompiledMethod:
    """A loaded drafter with its draft KV cache; the `DraftMethod` of every method there is.

    Features are flat, so a long prefill beside short appends is not padded to a rectangle. A draft
    step is one call that also appends what verification can yield. Features beyond that, and
    steps in which nothing is drafted, go through append-only calls; see `DraftPrograms`.
    """

    def __init__(
        self,
        drafter: Drafter[Any],
        target: EmbeddingAndHead,
        capacity: Capacity,
        on_recompilation: Callable[[], None] = lambda: None,
        *,
        placement: Placement | None = None,
        kept_programs: KeptPrograms | None = None,
        launching: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Allocate the draft KV cache; nothing is compiled yet.

        `target` is in the draft model's element type; `on_recompilation` is called when a step
        meets a shape that warm-up did not compile. `kept_programs` has programs that were compiled
        before; `launching` is entered to launch one, where other threads launch programs too.
        """
        _suit(drafter)
        self.spec = _spec(drafter, capacity)
        draft_ids = None if drafter.draft_ids is None else jnp.asarray(drafter.draft_ids)
        matrices = _matrices(drafter, target)
        self._programs = drafter.definition.programs_of(
            drafter.model,
            matrices,
            draft_ids,
            capacity,
            cache_dtype=cache_dtype(target.embedding.dtype),
            placement=placement,
        )
        self._weights = self._placed(DraftWeights(nnx.state(drafter.model), matrices, draft_ids))
        self._published = _published(drafter)
        self._draft_ids = drafter.draft_ids
        # The slot after the last is that of no sequence.
        slots, vocab_size = capacity.max_sequences + 1, self.spec.vocab_size
        self._recycled = RecycledOfSlots(slots, vocab_size, drafter.draft_ids)
        self._on_recompilation = on_recompilation
        self._kept_programs, self._launching = kept_programs, launching or nullcontext()
        self._warm = False
        self.step_seconds: tuple[float, ...] = ()
        self.shortest_step_seconds: tuple[float, ...] = ()
        self._executables: dict[tuple[str, int], Callable[..., Any]] = {}
        self._cache = buffer.allocate(self._programs.cache())

    @property
    def arrays(self) -> object:
        """The arrays on the devices, a pytree; a step replaces the draft KV cache in it."""
        return self._weights, self._cache

    def warm_up(self, progress: Callable[[int, int], None] = lambda count, total: None) -> None:
        """Compile every shape that `step` can meet and measure the draft steps."""
        appends, sizes = self._programs.append_sizes, self._programs.draft_sizes
        kinds: list[tuple[ProgramKind, int]] = [("draft", size) for size in reversed(sizes)]
        kinds += [("append", size) for size in appends]
        # XLA compiles outside the interpreter lock.
        with ThreadPoolExecutor(usable_cores()) as executor:
            compiled = executor.map(lambda kind: self._executable(*kind), kinds)
            for count, _ in enumerate(compiled, start=1):
                progress(count, len(kinds))
        for size in appends:
            self._append(self._pad(flatten_features([self._nowhere(1)]), size))
        whole = self.spec.block_size - 1
        self.step_seconds = tuple(self._draft_seconds(size, whole) for size in sizes)
        if self._programs.token_by_token:
            self.shortest_step_seconds = tuple(self._draft_seconds(size, 1) for size in sizes)
        self._warm = True

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        """Append each row's features to its slot, then draft for the rows that ask for it."""
        try:
            return self._step(rows)
        except jax.errors.JaxRuntimeError as error:
            # The cache was donated to the failed call and cannot be relied on. It is freed first:
            # there may be no memory for two.
            self._cache = None
            try:
                self._cache = buffer.allocate(self._programs.cache())
            except jax.errors.JaxRuntimeError as again:
                message = f"no new draft KV cache after a failed draft step: {again}"
                raise MethodLostError(message) from error
            raise DraftCacheLostError(f"the draft step failed: {error}") from error

    def prepare(self, drafter: Drafter[Any]) -> PreparedWeights:
        """Return weights for `swap`, on any thread. ValueError if the steps cannot take them."""
        if _published(drafter) != self._published:
            raise ValueError("its configuration is another one")
        if drafter.embedding is not None or drafter.head is not None:
            raise ValueError("it has an embedding or a head of its own")
        # None, for the whole vocabulary, must equal None.
        if not np.array_equal(np.asarray(drafter.draft_ids), np.asarray(self._draft_ids)):
            raise ValueError("its draft vocabulary is another one")
        _suit(drafter)
        state = nnx.state(drafter.model)
        if not all(all_finite(np.asarray(leaf)) for leaf in jax.tree.leaves(state)):
            raise ValueError("a weight is not finite")
        projection = self.spec.projection
        # Verifiers have the projection, and the features they keep went through it.
        if projection is not None and (
            jax.device_get(drafter.model.projection).fingerprint() != projection.fingerprint()
        ):
            raise ValueError("its projection of features is another one")
        weights = self._weights._replace(model=state)
        if _form(weights) != _form(self._weights):
            raise ValueError("its weights have other shapes or types")
        ready = jax.block_until_ready(self._placed(weights))
        return PreparedWeights(ready, drafter.fingerprint, drafter.model.config.trained)

    def swap(self, prepared: PreparedWeights) -> None:
        """Draft with other weights from the next step on; the draft KV cache stays as it is."""
        self._weights = prepared.weights
        self.spec = replace(self.spec, fingerprint=prepared.fingerprint, trained=prepared.trained)

    def _placed(self, weights: DraftWeights) -> Any:
        """Return weights on the devices of the programs; those that are there stay."""
        return jax.tree.map(
            lambda weight, shape: (
                weight if shape.sharding is None else jax.device_put(weight, shape.format)
            ),
            weights,
            self._programs.weights,
        )

    def _step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        for row in rows:
            self._recycled.add(row)
        drafting = [row for row in rows if row.draft_length > 0]
        size = next_power_of_two(len(drafting)) if drafting else 0
        fused = size * self._programs.features_per_block
        smallest, largest = self._programs.append_sizes[0], self._programs.append_sizes[-1]
        *leading, last = split_features(flatten_features(rows), fused, largest)
        for part in leading:
            count = max(next_power_of_two(part.slots.shape[0]), smallest)
            self._append(self._pad(part, count))
        if not drafting:
            return [()] * len(rows)
        blocks = pack_blocks(drafting, size, self._recycled.of(drafting, size))
        drafted = self._draft(self._pad(last, fused), blocks)
        drafts = []
        by_block = zip(drafted.token_ids.tolist(), drafted.counts.tolist(), strict=True)
        for row in rows:
            tokens, count = next(by_block) if row.draft_length else ([], 0)
            drafts.append(tuple(tokens[: min(row.draft_length, count)]))
        return drafts

    def _nowhere(self, draft_length: int) -> DraftRow:
        """Return a row that appends nothing and drafts from no sequence."""
        return DraftRow(
            slot=self.spec.max_sequences,
            context_length=0,
            features=np.zeros((0, self.spec.feature_width), self.spec.feature_dtype),
            anchor_token_id=0,
            draft_length=draft_length,
        )

    def _draft_seconds(self, size: int, draft_length: int) -> float:
        """Return the seconds of drafting `draft_length` tokens for `size` sequences, a median."""
        nowhere = self._nowhere(draft_length)
        new = self._pad(flatten_features([nowhere]), size * self._programs.features_per_block)
        length = min(_MEASURED_CONTEXT, self.spec.max_context_tokens)
        # A draft only reads, so whatever lies in the slots is good enough to be timed on.
        rows = [nowhere] * size
        blocks = pack_blocks(rows, size, self._recycled.of(rows, size))._replace(
            slots=np.arange(size, dtype=np.int32), lengths=np.full(size, length, np.int32)
        )
        self._draft(new, blocks)
        runs = []
        for _ in range(_MEASURED_RUNS):
            started = time.perf_counter()
            self._draft(new, blocks)
            runs.append(time.perf_counter() - started)
        return statistics.median(runs)

    def _append(self, new: PackedFeatures) -> None:
        run = self._executable("append", new.slots.shape[0])
        words = _words(new, None)
        with self._launching:
            self._cache = run(self._weights, self._cache, new.features, words)

    def _draft(self, new: PackedFeatures, blocks: PackedBlocks) -> Drafted:
        run = self._executable("draft", blocks.slots.shape[0])
        words = _words(new, blocks)
        with self._launching:
            self._cache, drafted = run(self._weights, self._cache, new.features, words)
        on_host: Drafted = jax.device_get(drafted)
        return on_host

    def _executable(self, kind: ProgramKind, size: int) -> Callable[..., Any]:
        """Return the compiled computation for this size, compiling it if it is new."""
        key = (kind, size)
        if key not in self._executables:
            if self._warm:
                self._on_recompilation()
            self._executables[key] = self._compile(kind, size)
        return self._executables[key]

    def _compile(self, kind: ProgramKind, size: int) -> Callable[..., Any]:
        lower, placement = partial(self._programs.lower, kind, size), self._programs.placement
        if self._kept_programs is None:
            return lower().compile()
        mesh = None if placement is None else placement.mesh
        return self._kept_programs.compiled((self._programs, kind, size), lower, mesh)

    def _pad(self, flat: PackedFeatures, size: int) -> PackedFeatures:
        """Pad flat features to `size` with features that are not written."""
        return pad_features(flat, size, nowhere=self.spec.max_sequences)


def _words(new: PackedFeatures, blocks: PackedBlocks | None) -> Words:
    """Return a program's arguments beside weights, cache and features, as words."""
    return to_words((new._replace(features=None), blocks))


def _suit(drafter: Drafter[Any]) -> None:
    """Bring weights into the form that this processor serves fastest; their values stay."""
    drafter.model.suit(jax.default_backend())


def _published(drafter: Drafter[Any]) -> dict[str, Any]:
    """Return the configuration as it is published, without what we add to it."""
    config = drafter.model.config.to_hf()
    # The target was checked when the drafter was loaded; not all checkpoints name it.
    return {key: value for key, value in config.items() if key != "blockdraft"}


def _form(weights: DraftWeights) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(weights)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _spec(drafter: Drafter[Any], capacity: Capacity) -> MethodSpec:
    method, config = drafter.definition, drafter.model.config
    projection = jax.device_get(drafter.model.projection) if capacity.projected else None
    return MethodSpec(
        name=method.name,
        block_size=config.block_size,
        target_layer_ids=config.target_layer_ids,
        feature_width=config.feature_width if projection is None else projection.width,
        feature_dtype=capacity.feature_dtype,
        vocab_size=config.decoder.vocab_size,
        max_sequences=capacity.max_sequences,
        max_context_tokens=capacity.max_context_tokens,
        max_feature_rows=capacity.max_feature_rows,
        fingerprint=drafter.fingerprint,
        trained=config.trained,
        reads_tokens=method.reads_tokens,
        projection=projection,
    )


def _matrices(drafter: Drafter[Any], target: EmbeddingAndHead) -> EmbeddingAndHead:
    """Return embedding and head: the drafter's own where it has them, else the target's."""
    embedding, head = target
    if drafter.draft_ids is not None:
        # The head scores the draft vocabulary only.
        head = (embedding if head is None else head)[drafter.draft_ids]
    has_own = drafter.embedding is not None or drafter.head is not None
    if not has_own and not drafter.definition.separate_head:
        return EmbeddingAndHead(embedding, head)
    if head is None:
        head = embedding  # tied in the target, which says nothing of the drafter's embedding
    choose = partial(_drafter_matrix, dtype=embedding.dtype)
    return EmbeddingAndHead(choose(drafter.embedding, embedding), choose(drafter.head, head))


def _drafter_matrix(matrix: np.ndarray | None, targets: Any, dtype: jnp.dtype) -> Any:
    """Return a matrix of a drafter, or the target's if it is equal or there is no other."""
    if matrix is None:
        return targets
    array = jnp.asarray(matrix, dtype)
    # Some checkpoints hold copies: there need not be two of them on the device.
    is_copy = isinstance(targets, jax.Array) and bool(jnp.array_equal(array, targets))
    return targets if is_copy else array
