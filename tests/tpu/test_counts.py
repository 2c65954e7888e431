"""The compiler's counts of a verification against a count by hand."""

import jax.numpy as jnp
import pytest
from tests.models.tiny import tiny_config

from blockdraft_aot.topology import describe_topology
from blockdraft_bench.kflat.curve import StepShape
from blockdraft_bench.kflat.decoder_cost import step_cost
from blockdraft_bench.kflat.modelled import modelled_points

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

# The compiler also counts norms, rotation and residuals, and on several chips what each does for
# itself. A step of a single token it computes, and counts, in another way.
FLOPS_TOLERANCE = 0.1


@pytest.mark.parametrize("name", ["v5p:1x1x1", "v6e:1x2"])
def test_operations_and_bytes(name: str) -> None:
    config = tiny_config(
        hidden_size=1024,
        intermediate_size=4096,
        num_layers=7,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        vocab_size=8192,
    )
    topology = describe_topology(name)
    shapes = [StepShape(1, 256, 4), StepShape(2, 512, 64)]
    steps: list[int] = []
    points = modelled_points(
        config, shapes, jnp.bfloat16, topology, on_step=lambda: steps.append(1)
    )
    assert len(steps) == 2
    for shape in shapes:
        point = points[shape]
        by_hand = step_cost(
            config,
            batch=shape.batch,
            context_tokens=shape.context_tokens,
            tokens=shape.tokens,
            bytes_per_element=2,
        )
        assert (point.flops, point.bytes) == (by_hand.flops, by_hand.bytes)
        assert point.compiled_flops == pytest.approx(by_hand.flops, rel=FLOPS_TOLERANCE)
        # Small weights are copied to the chip's own memory first, which counts as well.
        assert point.compiled_bytes is not None
        assert by_hand.bytes < point.compiled_bytes < 3 * by_hand.bytes
        # No faster than the chips' peaks allow.
        chips = topology.roofline.of_chips(topology.mesh.size)
        assert point.seconds > chips.seconds(by_hand.flops, by_hand.bytes)
