"""A target with adapters compiles for a slice: its branches are kernels, and copy no weights."""

from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import Mesh

from blockdraft_aot import programs
from blockdraft_aot.compiled import compile_and_read
from blockdraft_aot.model_shapes import SHAPES, Pair
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.survey import DTYPE
from blockdraft_aot.topology import describe_topology
from blockdraft_models.decoder.linear import Linear, LowRank
from blockdraft_models.decoder.model import Decoder

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

RANKS = (16, 8)
LIMITS = ServingLimits(
    max_sequences=16, max_step_tokens=1024, max_context_tokens=4096, page_size=32
)


class Adapted(Decoder):
    """A decoder whose layers' linear maps have adapters, of zeros."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.adapter_ranks = RANKS
        for layer in self.layers:
            for linear in [part for _, part in nnx.iter_modules(layer) if isinstance(part, Linear)]:
                (out, width), axes = linear.weight.shape, linear.weight.get_metadata()
                low_rank = LowRank(width, out, sum(RANKS), axes["out_sharding"], self.dtype)
                linear.adapters = low_rank


def mesh_of(name: str) -> Mesh:
    return describe_topology(name).mesh


@pytest.mark.parametrize(
    ("chips", "chip_count"),
    [pytest.param("v6e:1x1x1", 1, marks=pytest.mark.slow), ("v6e:2x2", 4)],
)
def test_steps_with_adapters_compile(
    chips: str, chip_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(SHAPES["qwen3-8b"].shortened(2), None)
    plain = TargetPrograms.on(mesh_of(chips), pair, LIMITS, 128, DTYPE)
    monkeypatch.setattr(programs, "Decoder", Adapted)
    adapted = TargetPrograms.on(mesh_of(chips), pair, LIMITS, 128, DTYPE)
    assert adapted.weight_bytes() > plain.weight_bytes()
    for place in (0, -1):
        before, after = (
            compile_and_read(those.lower(those.buckets[place])) for those in (plain, adapted)
        )
        # Two products for each of the seven maps of a layer.
        assert after.kernels == before.kernels + 14
        assert after.layer_sums == before.layer_sums == 0
        # A branch holds activations of its own, but copies no stack of the layers' matrices.
        stack = (
            2 * pair.target.intermediate_size * pair.target.hidden_size * jnp.dtype(DTYPE).itemsize
        )
        assert after.temporary_bytes - before.temporary_bytes < stack / chip_count / 2
