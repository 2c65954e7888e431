"""The steps of serving can be lowered for a GPU on a host without one."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from tests.models.tiny import LIKE_GEMMA3, LIKE_GPT_OSS, tiny_config

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import CacheLayout
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.step import TargetStep

KINDS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "gpt-oss": LIKE_GPT_OSS,
    "Gemma 3": LIKE_GEMMA3,
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_lowered_for_cuda(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(**{"num_layers": 2, **KINDS[kind]})
    abstract = nnx.eval_shape(lambda: Decoder(config, dtype=jnp.bfloat16, rngs=None))
    graph, weights = nnx.split(abstract)
    layout = CacheLayout.of(config, 16, 4, jnp.bfloat16)
    step = TargetStep(graph, layout, 8, FeatureForm((1, 0)), 4)

    class ForCuda:
        def __init__(self, function: Any, **options: Any) -> None:
            self.jitted = jit(function, **options)

        def lower(self, *shapes: Any) -> Any:
            return self.jitted.trace(*shapes).lower(lowering_platforms=("cuda",))

    jit = jax.jit
    monkeypatch.setattr(jax, "jit", ForCuda)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    text = step.lower(weights, Bucket(2, 8, 8)).as_text()
    # What is chosen by platform is chosen: experts are multiplied group by group.
    assert ("ragged_dot" in text) == (kind == "gpt-oss")
