"""How often the devices of a divided target talk to each other, from the compiled program."""

import jax
import jax.numpy as jnp
import pytest
from tests.models.tiny import tiny_config

from blockdraft_aot.compiled import compile_and_read
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_models.decoder.sharding import model_mesh
from blockdraft_verifier.device.buckets import Bucket

LIMITS = ServingLimits(max_sequences=2, max_step_tokens=8, max_context_tokens=32, page_size=4)


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_layer_adds_up_twice(kv_heads: int) -> None:
    config = tiny_config(num_heads=16, num_kv_heads=kv_heads, vocab_size=264)
    mesh = model_mesh(jax.devices()[:8])
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, 16, jnp.float32)
    compiled = compile_and_read(programs.lower(Bucket(2, 8, 8)))
    # After attention and after the MLP, parts are exchanged and then their sums.
    assert compiled.layer_collectives == 4
    assert compiled.collectives > 4
    alone = TargetPrograms.on(
        model_mesh(jax.devices()[:1]), Pair(config, None), LIMITS, 16, jnp.float32
    )
    assert compile_and_read(alone.lower(Bucket(2, 8, 8))).collectives == 0
    assert programs.weight_bytes() < 0.3 * alone.weight_bytes()
