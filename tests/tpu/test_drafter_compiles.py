"""Drafters of an 8B target, compiled for TPU chips that are not there."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from tests.models.tiny import tiny_config

from blockdraft_aot.compiled import Compiled, compile_and_read
from blockdraft_aot.model_shapes import SHAPES
from blockdraft_aot.topology import Topology, describe_topology
from blockdraft_drafter.compiled.definition import DraftConfig
from blockdraft_drafter.compiled.programs import Capacity, DraftPrograms, ProgramKind
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.sources import method_of
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import Placement

pytestmark = pytest.mark.tpu
pytest.importorskip("libtpu")

TARGET = SHAPES["llama-3.1-8b"]
DFLASH = DFlashConfig.default_for(TARGET, block_size=16, num_layers=5, num_features=5)
# Every step of a block is compiled as the one before it: three are enough.
EAGLE3 = replace(Eagle3Config.default_for(TARGET, block_size=4), draft_vocab_size=32000)
STEPS = EAGLE3.block_size - 1
CAPACITY = Capacity(
    max_sequences=16,
    max_context_tokens=16384,
    max_feature_rows=256,
    feature_dtype=np.dtype(bfloat16),
    projected=True,
)
# Embedding, and what finds the likeliest token of a divided vocabulary.
AROUND_LAYERS = 4
# What filters and finds the greatest under Gumbel noise; in a branch for sampled sequences only.
SAMPLING = 11


@pytest.fixture(scope="module")
def chips() -> Topology:
    return describe_topology("v5p:2x2x1")


def programs(config: DraftConfig, chips: Topology, target: DecoderConfig = TARGET) -> DraftPrograms:
    placement = Placement(chips.mesh)
    return method_of(config).abstract_programs(
        config, target, CAPACITY, dtype=jnp.bfloat16, placement=placement
    )


def compiled(programs: DraftPrograms, kind: ProgramKind, size: int, chips: Topology) -> Compiled:
    found = compile_and_read(programs.lower(kind, size))
    used = found.argument_bytes + found.temporary_bytes + found.result_bytes + found.code_bytes
    assert used < chips.memory_bytes
    # Less than one part of one layer: nothing copies the buffer, which is written in place.
    assert found.temporary_bytes < min(_parts(programs))
    return found


def _parts(programs: DraftPrograms) -> list[int]:
    """Bytes on one device of each array of keys or values in the draft KV cache."""
    leaves: list[Any] = jax.tree.leaves(programs.cache())
    return [
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf in leaves
        if len(leaf.shape) == 4
    ]


@pytest.mark.parametrize("end", [0, -1], ids=["smallest", "largest"])
def test_dflash_draft(end: int, chips: Topology) -> None:
    drafter = programs(DFLASH, chips)
    found = compiled(drafter, "draft", drafter.draft_sizes[end], chips)
    assert found.kernels == DFLASH.decoder.num_layers
    assert found.layer_collectives == 2 * DFLASH.decoder.num_layers
    assert found.collectives <= found.layer_collectives + AROUND_LAYERS + SAMPLING


@pytest.mark.parametrize("end", [0, -1], ids=["smallest", "largest"])
def test_eagle3_draft(end: int, chips: Topology) -> None:
    drafter = programs(EAGLE3, chips)
    found = compiled(drafter, "draft", drafter.draft_sizes[end], chips)
    assert found.kernels == STEPS
    assert found.layer_collectives == 2 * STEPS
    # One more embedding for the rows that are appended.
    around = (AROUND_LAYERS + SAMPLING) * STEPS
    assert found.collectives <= found.layer_collectives + around + 1


@pytest.mark.parametrize("end", [0, -1], ids=["smallest", "largest"])
@pytest.mark.parametrize("config", [DFLASH, EAGLE3], ids=["dflash", "eagle3"])
def test_append(config: DraftConfig, end: int, chips: Topology) -> None:
    drafter = programs(config, chips)
    found = compiled(drafter, "append", drafter.append_sizes[end], chips)
    # EAGLE-3 reads the tokens, from a divided embedding.
    assert found.collectives <= (1 if config is EAGLE3 else 0)


@pytest.mark.parametrize(
    "shape",
    [
        {"head_dim": 64, "num_heads": 32, "num_kv_heads": 8},
        {"head_dim": 128, "num_heads": 16, "num_kv_heads": 2},
        {"head_dim": 64, "num_heads": 9, "num_kv_heads": 3},
        {"head_dim": 128, "num_heads": 28, "num_kv_heads": 4},
    ],
    ids=["head_dim 64", "two chips to a KV head", "undivided", "groups of seven"],
)
def test_other_heads(shape: dict[str, int], chips: Topology) -> None:
    """Causal and with a window, which need the block position of every row."""
    target = tiny_config("qwen3", num_layers=8, vocab_size=512, hidden_size=256, **shape)
    config = replace(
        DFlashConfig.default_for(target, block_size=10, num_layers=2),
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=2048,
        is_causal=True,
    )
    found = compiled(programs(config, chips, target), "draft", 2, chips)
    assert found.kernels == 2
