"""Every program of the two processes, and what attention does in it, counted by hand.

XLA's counts leave out what happens inside a kernel, and count the reference attention's loop once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from blockdraft_aot.compiled import Counts, bytes_on_one_device
from blockdraft_aot.target_programs import TargetPrograms
from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_verifier.device.buckets import Bucket

Lower = Callable[[], jax.stages.Lowered]


@dataclass(frozen=True, slots=True)
class Program:
    """One program to compile.

    Attributes:
        kind: "verify", "prefill", "append" or "draft".
        rows: Sequences; 0 where rows of features go to any of them.
        tokens: Tokens, or rows of features.
        lower: Traces it.
        counted: What to count instead: a part that stands for itself, and the whole of which the
            rest is one layer; None to count the program itself.
        layers: Layers the model has.
        traced_layers: Layers that the program spells out: one if they are scanned, and each as
            often as it is passed through.
        attention: What attention does, over all layers.
        least_bytes: Bytes it has to read, by hand: weights once, and contexts; None if unknown.
    """

    kind: str
    rows: int
    tokens: int
    lower: Lower
    counted: tuple[Lower, Lower] | None
    layers: int
    traced_layers: int
    attention: Counts
    least_bytes: float | None


def target_programs(target: TargetPrograms, context_tokens: int) -> Iterator[Program]:
    """Yield the verifier's programs.

    Args:
        target: Lowers them.
        context_tokens: Tokens each sequence has in the cache.
    """
    for bucket in target.buckets:
        yield step_program(target, bucket, context_tokens)


def unpadded_programs(target: TargetPrograms, context_tokens: int) -> Iterator[Program]:
    """Yield what plain steps would be if short ones were not padded; see `target_programs`."""
    for bucket in target.unpadded_buckets:
        yield step_program(target, bucket, context_tokens)


def step_program(target: TargetPrograms, bucket: Bucket, context_tokens: int) -> Program:
    """Return the verifier's program for one bucket; see `target_programs`."""
    layout, config = target.layout, target.pair.target
    devices = 1 if layout.mesh is None or not layout.divided else layout.mesh.size
    position_bytes = layout.page_bytes // layout.page_size
    attention = _attention(
        layers=config.num_layers,
        heads=config.num_heads // devices,
        head_dim=config.head_dim,
        queries=bucket.tokens,
        context_tokens=context_tokens,
        context_bytes=bucket.rows * context_tokens * position_bytes,
    )
    return Program(
        target.kind(bucket),
        bucket.rows,
        bucket.tokens,
        partial(target.lower, bucket),
        (
            partial(target.lower_greedy_without_layers, bucket),
            partial(target.lower_greedy, bucket),
        ),
        config.num_layers,
        1,
        attention,
        target.read_bytes() + attention.bytes,
    )


def draft_programs(
    drafter: DraftPrograms, config: DraftConfig, context_tokens: int
) -> Iterator[Program]:
    """Yield the drafter's programs.

    Args:
        drafter: Lowers them.
        config: The drafter's shape.
        context_tokens: Positions of each context.
    """
    layers = config.decoder
    assert drafter.placement is not None
    sharding = HeadSharding.of(layers, drafter.placement)
    heads = layers.num_heads
    if sharding.query_axis is not None:
        heads //= sharding.mesh.shape[sharding.query_axis]
    buffer = drafter.room.context(layers, jnp.bfloat16, sharding)
    slots, _, capacity, _ = buffer[0][0].shape
    position_bytes = bytes_on_one_device(buffer) // (slots * capacity)
    # Entries after the anchor are drafted one by one, each with a look at the whole context.
    passes = 1 if isinstance(config, DFlashConfig) else config.block_size - 1
    queries = config.block_inputs if isinstance(config, DFlashConfig) else passes
    for rows in drafter.append_sizes:
        yield Program(
            "append",
            0,
            rows,
            partial(drafter.lower, "append", rows),
            None,
            layers.num_layers,
            layers.num_layers,
            Counts(0.0, 0.0, 0.0),
            None,
        )
    for blocks in drafter.draft_sizes:
        yield Program(
            "draft",
            blocks,
            blocks * config.block_size,
            partial(drafter.lower, "draft", blocks),
            None,
            layers.num_layers,
            layers.num_layers * passes,
            _attention(
                layers=layers.num_layers,
                heads=heads,
                head_dim=layers.head_dim,
                queries=blocks * queries,
                context_tokens=context_tokens,
                context_bytes=passes * blocks * context_tokens * position_bytes,
            ),
            None,
        )


def _attention(
    *,
    layers: int,
    heads: int,
    head_dim: int,
    queries: int,
    context_tokens: int,
    context_bytes: int,
) -> Counts:
    """Return scores and mixture, 4 operations for each pair and dimension, and keys and values."""
    flops = 4.0 * layers * heads * head_dim * queries * context_tokens
    return Counts(flops, float(context_bytes), 0.0)
