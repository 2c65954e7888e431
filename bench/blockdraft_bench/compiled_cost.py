"""What XLA's compiler says of the verifier's step, for a device that need not be there.

Three things make its cost analysis fit for that:

* The step is greedy: the sampling options are constants, so that branches not taken disappear.
  The analysis counts the dearest branch otherwise.
* Each sequence has one page that holds all of it, so that the reference attention reads its
  context in one chunk. A loop's body is counted once, whatever its trip count.
* Layers are alike. Steps of one and of two layers are compiled; each further layer costs what
  the second one did. A whole decoder takes minutes to compile for a TPU.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from blockdraft_bench.kflat import StepShape
from blockdraft_models.config import DecoderConfig
from blockdraft_models.decoder import Decoder
from blockdraft_verifier.buckets import Bucket
from blockdraft_verifier.packing import pack, pack_sampling
from blockdraft_verifier.paged_cache import allocate_kv
from blockdraft_verifier.step import StepInputs, run_step


@dataclass(frozen=True, slots=True)
class CompiledCost:
    """The compiler's estimate of a step.

    Attributes:
        flops: Operations.
        bytes: Bytes accessed, intermediate results included.
        seconds: Its own estimate of the time ("optimal_seconds"); None where it has none.
    """

    flops: float
    bytes: float
    seconds: float | None


def compiled_cost(
    config: DecoderConfig, shape: StepShape, dtype: DTypeLike, device: jax.Device
) -> CompiledCost:
    """Return the cost of a step on one device, from compiled steps of one and two layers.

    Args:
        config: The decoder; weights are not needed.
        shape: Of the step.
        dtype: Element type of weights and cache.
        device: One of this process or of a topology.
    """
    if config.num_layers <= 2:
        return compiled_step_cost(config, shape, dtype, device)
    one, two = (
        compiled_step_cost(replace(config, num_layers=layers), shape, dtype, device)
        for layers in (1, 2)
    )

    def extended(first: float, second: float) -> float:
        return first + (config.num_layers - 1) * (second - first)

    known = one.seconds is not None and two.seconds is not None
    return CompiledCost(
        extended(one.flops, two.flops),
        extended(one.bytes, two.bytes),
        extended(one.seconds or 0.0, two.seconds or 0.0) if known else None,
    )


def compiled_step_cost(
    config: DecoderConfig, shape: StepShape, dtype: DTypeLike, device: jax.Device
) -> CompiledCost:
    """Compile the whole decoder as it is and return the cost of its step."""
    pages, page_size = shape.batch, shape.context_tokens + shape.tokens_per_sequence
    graph, weights = nnx.split(
        nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=None))  # shapes only
    )
    bucket = Bucket(shape.batch, shape.tokens, shape.tokens)
    inputs = pack((), bucket, page_size=page_size, num_pages=pages, max_pages=1)
    caches = jax.eval_shape(functools.partial(allocate_kv, config, pages, page_size, dtype))
    sharding = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding),
        (weights, caches, inputs),
    )
    step = functools.partial(_greedy_step, graph, max_drafts=max(1, shape.tokens_per_sequence - 1))
    compiled: Any = jax.jit(step, donate_argnums=(1,)).lower(*arguments).compile()
    analysis = compiled.cost_analysis()
    seconds = analysis.get("optimal_seconds", 0.0)
    return CompiledCost(
        analysis["flops"],
        analysis["bytes accessed"],
        # Each operation it cannot judge counts as -1 second (all of v5e has some).
        seconds if seconds > 0.0 else None,
    )


def _greedy_step(
    graph: nnx.GraphDef[Decoder], weights: Any, caches: Any, inputs: StepInputs, *, max_drafts: int
) -> Any:
    greedy = inputs._replace(
        sampling=pack_sampling((), inputs.draft_count.shape[0]),
        log_probs_wanted=jnp.zeros(1, bool),
    )
    return run_step(
        nnx.merge(graph, weights),
        caches,
        greedy,
        capture=(),
        max_drafts=max_drafts,
        feature_dtype=jnp.bfloat16,
    )
