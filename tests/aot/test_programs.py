"""Bytes of a target's weights on each device, and those a step reads, by hand."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.models.tiny import LIKE_GEMMA4_SHARED, LIKE_QWEN3_5, tiny_config

from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_models.decoder.sharding import model_mesh
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import Attention

LIMITS = ServingLimits(2, 8, 64, 8)
# Of one layer: queries, keys, values, output, gate, up, down; and their rows.
ELEMENTS = 32 * (32 + 16 + 16 + 32 + 64 + 64 + 64)
ROWS = 32 + 16 + 16 + 32 + 64 + 64 + 32
HEAD = 260 * 32
# Embedding, head, norms; those of a layer are two, and one each for queries and keys.
REST = 2 * HEAD + 32 + 3 * (2 * 32 + 2 * 8)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("float", 2 * (REST + 3 * ELEMENTS)),
        ("int8", 2 * (REST - HEAD) + HEAD + 4 * 260 + 3 * (ELEMENTS + 4 * ROWS)),
    ],
)
def test_weights(weights: WeightFormat, expected: int) -> None:
    mesh = model_mesh(jax.devices()[:1])
    pair = Pair(tiny_config("qwen3"), None, weights)
    assert TargetPrograms.on(mesh, pair, LIMITS, 16, jnp.bfloat16).weight_bytes() == expected


@pytest.mark.parametrize(("tokens", "read"), [(1, 2), (2, 3), (64, 4)])
def test_experts_that_no_token_is_sent_to_are_not_read(tokens: int, read: int) -> None:
    config = tiny_config(num_experts=4, experts_per_token=2)
    programs = TargetPrograms.on(
        model_mesh(jax.devices()[:1]), Pair(config, None), LIMITS, 16, jnp.bfloat16
    )
    program = programs.program(Bucket(1, tokens, 1), context_tokens=0)
    expert, router = 2 * 3 * 3 * 32 * 64, 2 * 3 * 4 * 32
    # Two experts are counted as one dense MLP.
    assert program.by_hand.bytes == pytest.approx(router + (read - 2) * expert)
    assert program.least_bytes == pytest.approx(programs.weight_bytes() - (4 - read) * expert)


def test_states_are_read_and_written_once_a_chunk() -> None:
    config = tiny_config(**LIKE_QWEN3_5)
    mesh = model_mesh(jax.devices()[:1])
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, 16, jnp.bfloat16)
    one, many = (programs.program(Bucket(1, tokens, 1), 0).by_hand for tokens in (1, 64))
    state = 4 * 4 * 8 * 12  # heads, width of keys and of values, float32
    assert many.bytes - one.bytes == 4 * 2 * state
    assert many.flops > 1.9 * one.flops
    # What attends has a cache, and only that.
    assert programs.layout.num_layers == 1


@pytest.mark.parametrize("shape", [{}, LIKE_GEMMA4_SHARED], ids=["llama", "several forms"])
def test_more_layers_count_more(shape: dict[str, Any]) -> None:
    mesh, flops = model_mesh(jax.devices()[:1]), []
    for layers in (8, 16):
        sizes = {"num_layers": layers, "windows": (10, 0) * (layers // 2)}
        pair = Pair(tiny_config(**{**shape, **sizes}), None)
        programs = TargetPrograms.on(mesh, pair, LIMITS, 16, jnp.bfloat16)
        flops.append(programs.count_greedy(Bucket(1, 8, 8)).flops)
    assert 0 < flops[0] < flops[1]


@pytest.mark.parametrize(
    ("attention", "rows", "tokens", "reads"),
    [
        *(("portable", 1, 256, 1), ("library", 1, 256, 8), ("library", 4, 256, 8)),
        # A tile has 2,048 queries of all heads, of which there are 64.
        *(("library", 16, 256, 16), ("tiles", 1, 256, 8), ("tiles", 4, 16, 4)),
    ],
)
def test_a_context_is_read_again_for_each_block_of_queries(
    attention: Attention, rows: int, tokens: int, reads: int
) -> None:
    mesh = model_mesh(jax.devices()[:1])
    pair = Pair(tiny_config(num_heads=64, num_kv_heads=2), None)
    programs = TargetPrograms.on(mesh, pair, LIMITS, 16, jnp.bfloat16)
    programs = replace(programs, layout=replace(programs.layout, attention=attention))
    none, some = (programs.program(Bucket(rows, tokens, 1), length) for length in (0, 100))
    position = 3 * 2 * 2 * 8 * 2  # layers, keys and values, heads, width, bfloat16
    assert some.by_hand.bytes - none.by_hand.bytes == reads * 100 * position
