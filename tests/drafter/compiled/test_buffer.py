"""How many positions a draft KV cache may have for so many bytes."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from tests.models.tiny import tiny_config

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.buffer import HeadSharding


def test_the_capacity_that_fits_is_the_most_that_does() -> None:
    config = tiny_config(num_layers=2)
    one = buffer.shapes(config, slots=3, capacity=buffer.CHUNK, dtype=jnp.float32)
    chunk_bytes = sum(part.size * 4 for pair in one for part in pair)

    def fitting(budget_bytes: int) -> int:
        return buffer.fitting_capacity(
            config, slots=3, dtype=jnp.float32, budget_bytes=budget_bytes
        )

    assert fitting(chunk_bytes - 1) == 0
    assert fitting(chunk_bytes) == buffer.CHUNK
    assert fitting(5 * chunk_bytes + 1) == 5 * buffer.CHUNK


def test_a_device_holds_its_share_of_the_heads() -> None:
    config = tiny_config(num_layers=1)
    sharding = HeadSharding(Mesh(jax.devices()[:1], "model"), "model", "model")
    whole, shared = (
        buffer.fitting_capacity(
            config, slots=1, dtype=jnp.float32, budget_bytes=1 << 24, sharding=each
        )
        for each in (None, sharding)
    )
    # On one device a share is all of it.
    assert whole == shared > 0
