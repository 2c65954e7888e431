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


# Of a width that rows fill their share of the memory with, and of twice the MLP of Gemma 4 E2B; and
# from the ranks of adapters to an MLP.
@pytest.mark.parametrize(
    ("width", "outs"), [(8192, 4096), (12288, 4096), (16384, 4096), (128, 12288), (16, 12288)]
)
def test_rows_of_any_width_fit(width: int, outs: int) -> None:
    mesh = describe_topology("v5p:1x1x1").mesh
    whole = NamedSharding(mesh, PartitionSpec())
    x, weight = (
        jax.ShapeDtypeStruct((count, width), jnp.bfloat16, sharding=whole) for count in (2048, outs)
    )
    product = jax.jit(lambda x, weight: project(x, weight, division=Division(mesh, None)))
    with lowering_on(mesh):
        lowered = product.lower(x, weight)
    assert "tpu_custom_call" in str(lowered.compile().as_text())
