"""What every draft method here shares: compiled steps over a buffer of contexts."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, DTypeLike, Int

from blockdraft_drafter import buffer
from blockdraft_drafter.buffer import LayerContext
from blockdraft_drafter.config import DFlashConfig
from blockdraft_drafter.eagle3_config import Eagle3Config
from blockdraft_drafter.method import ContextRow, ContextsLostError, MethodSpec, Proposal
from blockdraft_drafter.packing import (
    PackedBlocks,
    PackedRows,
    flatten_rows,
    next_power_of_two,
    pack_blocks,
    pad_rows,
    powers_of_two,
    split_rows,
)
from blockdraft_models.config import DecoderConfig

# A context this long is typical of a chat; the measured step seconds include attending to it.
_MEASURED_CONTEXT = 512
_MEASURED_RUNS = 5


class Drafted(NamedTuple):
    """What blocks became; a pytree.

    Attributes:
        token_ids: Int[Array, "blocks block_size-1"], the drafted tokens.
        log_probs: Float[Array, "blocks block_size-1"], natural logarithm of their probabilities.
    """

    token_ids: Array
    log_probs: Array


@dataclass(frozen=True, slots=True)
class Room:
    """How much a method holds, and what it takes.

    Attributes:
        max_sequences: Number of context slots.
        max_context_tokens: Most committed positions per slot.
        max_feature_rows: Most feature rows per sequence and step.
        feature_dtype: Element type of the features to come.
    """

    max_sequences: int
    max_context_tokens: int
    max_feature_rows: int
    feature_dtype: np.dtype[Any]

    def spec(
        self,
        name: str,
        config: DFlashConfig | Eagle3Config,
        fingerprint: str,
        *,
        reads_tokens: bool = False,
    ) -> MethodSpec:
        """Return the fixed facts of a drafter with this room; see `MethodSpec`."""
        return MethodSpec(
            name=name,
            block_size=config.block_size,
            target_layer_ids=config.target_layer_ids,
            feature_width=config.feature_width,
            feature_dtype=self.feature_dtype,
            vocab_size=config.decoder.vocab_size,
            max_sequences=self.max_sequences,
            max_context_tokens=self.max_context_tokens,
            max_feature_rows=self.max_feature_rows,
            fingerprint=fingerprint,
            trained=config.trained,
            reads_tokens=reads_tokens,
        )

    def allocate(self, decoder: DecoderConfig, dtype: DTypeLike) -> list[LayerContext]:
        """Return an empty context buffer of some draft layers."""
        return buffer.allocate(
            decoder, slots=self.max_sequences, capacity=self.max_context_tokens, dtype=dtype
        )


@runtime_checkable
class DraftSteps(Protocol):
    """The computations of a draft method, as pure functions to be compiled whole.

    `weights` and `context` are pytrees that only the method itself looks into.
    """

    def allocate(self) -> Any:
        """Return the empty context buffer of all slots."""

    def append(self, weights: Any, context: Any, rows: PackedRows) -> Any:
        """Return the buffer with some rows added."""

    def append_and_draft(
        self, weights: Any, context: Any, rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[Any, Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""


class CompiledMethod:
    """Appends and drafts in as few device calls as possible, with few compiled shapes.

    Features are flat rows, so a long prefill beside short appends is not padded to a rectangle. A
    draft step over a batch of B blocks (B a power of two) is one call that also appends up to
    B * block_size rows, all that verification can yield. Rows beyond that, and steps in which
    nothing is drafted, go through append-only calls over a power of two of rows. That is one
    executable per batch size and one per row count, not one per pair.
    """

    def __init__(
        self,
        spec: MethodSpec,
        steps: DraftSteps,
        weights: Any,
        *,
        draft_ids: Int[np.ndarray, " draft"] | None = None,
        on_recompilation: Callable[[], None] = lambda: None,
    ) -> None:
        """Allocate the context buffer; nothing is compiled yet.

        Args:
            spec: The fixed facts.
            steps: The computations.
            weights: First argument of both.
            draft_ids: What the drafted ids stand for, if they are not the target's own.
            on_recompilation: Called when a step meets a shape that warm-up did not compile.
        """
        self._spec = spec
        self._steps = steps
        self._weights = weights
        self._draft_ids = draft_ids
        self._on_recompilation = on_recompilation
        self._warm = False
        self._step_seconds: tuple[float, ...] = ()
        self._executables: dict[tuple[str, int], Callable[..., Any]] = {}
        self._rows_per_block = next_power_of_two(spec.block_size)
        self._most_rows = next_power_of_two(max(spec.max_feature_rows, self._rows_per_block))
        self._context = steps.allocate()

    @property
    def spec(self) -> MethodSpec:
        """The fixed facts."""
        return self._spec

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Measured seconds of one draft step over batches of 1, 2, 4, ...; empty before warm-up."""
        return self._step_seconds

    def warm_up(self) -> None:
        """Compile every shape that `step` can meet and measure the draft steps."""
        nowhere = ContextRow(
            slot=self._spec.max_sequences,
            context_length=0,
            features=np.zeros((0, self._spec.feature_width), self._spec.feature_dtype),
            anchor_token_id=0,
            draft_length=1,
        )
        for size in powers_of_two(self._rows_per_block, self._most_rows):
            self._append(self._pad(flatten_rows([nowhere]), size))
        seconds = []
        length = min(_MEASURED_CONTEXT, self._spec.max_context_tokens)
        for size in powers_of_two(1, self._spec.max_sequences):
            rows = self._pad(flatten_rows([nowhere]), size * self._rows_per_block)
            blocks = pack_blocks([nowhere] * size, size)
            # A draft only reads, so whatever lies in the slots is good enough to be timed on.
            blocks = blocks._replace(
                slots=np.arange(size, dtype=np.int32), lengths=np.full(size, length, np.int32)
            )
            self._draft(rows, blocks)
            runs = []
            for _ in range(_MEASURED_RUNS):
                started = time.perf_counter()
                self._draft(rows, blocks)
                runs.append(time.perf_counter() - started)
            seconds.append(statistics.median(runs))
        self._step_seconds = tuple(seconds)
        self._warm = True

    def step(self, rows: Sequence[ContextRow]) -> list[Proposal]:
        """Append each row's features to its slot, then draft for the rows that ask for it.

        Args:
            rows: At most max_sequences rows with distinct slots.

        Returns:
            One proposal per row, in order; empty for rows that only append.

        Raises:
            ContextsLostError: If the device step failed; the contents of all slots are gone.
        """
        try:
            return self._step(rows)
        except jax.errors.JaxRuntimeError as error:
            # The buffer was donated to the failed call and cannot be relied on.
            self._context = self._steps.allocate()
            raise ContextsLostError(f"the draft step failed: {error}") from error

    def _step(self, rows: Sequence[ContextRow]) -> list[Proposal]:
        drafting = [row for row in rows if row.draft_length > 0]
        size = next_power_of_two(len(drafting)) if drafting else 0
        fused_rows = size * self._rows_per_block
        *leading, last = split_rows(flatten_rows(rows), fused_rows, self._most_rows)
        for part in leading:
            count = max(next_power_of_two(part.slots.shape[0]), self._rows_per_block)
            self._append(self._pad(part, count))
        if not drafting:
            return [Proposal()] * len(rows)
        drafted = self._draft(self._pad(last, fused_rows), pack_blocks(drafting, size))
        index = iter(range(len(drafting)))
        return [
            _proposal(drafted, next(index), row.draft_length) if row.draft_length else Proposal()
            for row in rows
        ]

    def _append(self, rows: PackedRows) -> None:
        run = self._executable("append", rows.slots.shape[0], rows)
        self._context = run(self._weights, self._context, rows)

    def _draft(self, rows: PackedRows, blocks: PackedBlocks) -> Drafted:
        run = self._executable("draft", blocks.slots.shape[0], rows, blocks)
        self._context, drafted = run(self._weights, self._context, rows, blocks)
        on_host: Drafted = jax.device_get(drafted)
        if self._draft_ids is None:
            return on_host
        return on_host._replace(token_ids=self._draft_ids[on_host.token_ids])

    def _executable(self, kind: str, size: int, *packed: Any) -> Callable[..., Any]:
        """Return the compiled computation for this size, compiling it if it is new."""
        key = (kind, size)
        if key not in self._executables:
            if self._warm:
                self._on_recompilation()
            function = self._steps.append if kind == "append" else self._steps.append_and_draft
            jitted = jax.jit(function, donate_argnums=1)
            self._executables[key] = jitted.lower(self._weights, self._context, *packed).compile()
        return self._executables[key]

    def _pad(self, flat: PackedRows, size: int) -> PackedRows:
        return pad_rows(flat, size, unused_slot=self._spec.max_sequences)


def _proposal(drafted: Drafted, block: int, length: int) -> Proposal:
    return Proposal(
        token_ids=tuple(drafted.token_ids[block, :length].tolist()),
        log_probs=tuple(drafted.log_probs[block, :length].tolist()),
    )
