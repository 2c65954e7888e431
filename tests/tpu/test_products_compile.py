"""Products of many rows as wide as those of published models fit a chip's fast memory."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from blockdraft_aot.topology import describe_topology
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.sharding import Division
from blockdraft_models.platform import lowering_on

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu


# Of a width that rows fill their share of the memory with, and of twice the MLP of Gemma 4 E2B.
@pytest.mark.parametrize("width", [8192, 12288, 16384])
def test_wide_rows_fit(width: int) -> None:
    mesh = describe_topology("v5p:1x1x1").mesh
    whole = NamedSharding(mesh, PartitionSpec())
    x, weight = (
        jax.ShapeDtypeStruct((count, width), jnp.bfloat16, sharding=whole) for count in (2048, 4096)
    )
    product = jax.jit(lambda x, weight: project(x, weight, division=Division(mesh, None)))
    with lowering_on(mesh):
        lowered = product.lower(x, weight)
    assert "tpu_custom_call" in str(lowered.compile().as_text())
