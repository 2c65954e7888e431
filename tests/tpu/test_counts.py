"""The compiler's counts of a verification against a count by hand."""

import jax.numpy as jnp
import pytest
from tests.models.tiny import LIKE_GEMMA4_SHARED, tiny_config

from blockdraft_aot.compiled import modelled_seconds
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.topology import describe_topology
from blockdraft_bench.kflat.curve import StepShape, step_cost
from blockdraft_verifier.device.buckets import Bucket

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

# The compiler also counts norms, rotation and residuals, and on several chips what each does for
# itself. A step of a single token it computes, and counts, in another way.
FLOPS_TOLERANCE = 0.1
SHAPES = [StepShape(1, 256, 4), StepShape(2, 512, 64)]


# What is divided among two chips is so in steps of every shape.
@pytest.mark.parametrize(("name", "shapes"), [("v5p:1x1x1", SHAPES), ("v6e:1x2", SHAPES[1:])])
def test_operations_and_bytes(name: str, shapes: list[StepShape]) -> None:
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
    chips = topology.mesh.size
    for shape in shapes:
        context = shape.context_tokens + shape.tokens_per_sequence
        limits = ServingLimits(shape.batch, shape.tokens, context, 32)
        pages = shape.batch * -(-context // 32)
        programs = TargetPrograms.on(topology.mesh, Pair(config, None), limits, pages, jnp.bfloat16)
        bucket = Bucket(shape.batch, shape.tokens, shape.tokens)
        rest = programs.program(bucket, shape.context_tokens).by_hand
        counts, by_hand = programs.count_greedy(bucket).plus(rest), step_cost(config, shape, 2)
        assert chips * counts.flops == pytest.approx(by_hand.flops, rel=FLOPS_TOLERANCE)
        # What passes from one kernel to the next is written and read, which counts as well.
        assert by_hand.bytes < chips * counts.bytes < 4 * by_hand.bytes
        # No faster than the chips' peaks allow.
        least = topology.roofline.seconds(by_hand.flops / chips, by_hand.bytes / chips)
        assert modelled_seconds(counts, rest, topology.roofline) > least


def test_each_period_is_counted_as_often_as_it_comes() -> None:
    heads = {"num_heads": 4, "head_dim": 128, "global_head_dim": 256, "layer_embedding_size": 128}
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1024}
    layers = {"num_layers": 10, "windows": (128, 0) * 5, "shared_kv_layers": 4}
    config = tiny_config(**{**LIKE_GEMMA4_SHARED, **heads, **sizes, **layers})
    mesh, limits = describe_topology("v5e:1x1").mesh, ServingLimits(1, 64, 256, 32)
    programs = TargetPrograms.on(mesh, Pair(config, None), limits, 8, jnp.bfloat16)
    bucket = programs.buckets[-1]
    # All weights but the table of further embeddings are multiplied with every token.
    table = config.vocab_size * config.num_layers * config.layer_embedding_size
    weights = programs.weight_bytes() / 2 - table
    counts = programs.count_greedy(bucket)
    # The head's products are those of the choices.
    head = config.vocab_size * config.hidden_size * (bucket.tokens - bucket.choices)
    by_hand = 2.0 * (bucket.tokens * weights - head)
    assert counts.flops == pytest.approx(by_hand, rel=FLOPS_TOLERANCE)
