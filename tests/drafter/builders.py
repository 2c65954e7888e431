"""Tiny drafters and methods for the tests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tests.models.tiny import tiny_config

from blockdraft_drafter.checkpoint import build, fingerprint, published_arrays
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.compiled.steps import Room
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_models.weights.loading import Checkpoint, EmbeddingAndHead

TARGET = Checkpoint(
    tiny_config(num_layers=8, vocab_size=64, bos_token_id=1, eos_token_ids=(2,)),
    "0123456789abcdef",
    Path("tiny"),
)


def drafter_config(**overrides: Any) -> DFlashConfig:
    """A two-layer drafter for TARGET with 3 features and a block of 4."""
    config = DFlashConfig.default_for(TARGET.config, block_size=4, num_features=3)
    return replace(config, **overrides)


def read_dflash(published: dict[str, Any]) -> DFlashConfig:
    """What a published configuration says to the drafter of TARGET."""
    return DFlashConfig.from_hf(published, TARGET.config, block_size=8)


def random_drafter(config: DFlashConfig, seed: int = 0) -> Drafter[DFlash]:
    """A drafter whose norms, and what starts at zero, are random too, so that each matters."""
    arrays = published_arrays(DFlash(config, rngs=nnx.Rngs(seed)))
    noise = np.random.default_rng(seed)
    for name, array in arrays.items():
        if array.ndim == 1:
            arrays[name] = array + 0.3 * noise.standard_normal(array.shape).astype(np.float32)
        elif not array.any():
            arrays[name] = noise.standard_normal(array.shape).astype(np.float32)
    model = build(DFLASH, config, arrays, dtype=jnp.float32)
    return Drafter(DFLASH, model, fingerprint(config, arrays))


def target_parts(seed: int = 1, *, tied: bool = True) -> EmbeddingAndHead:
    """A random embedding, and a random head if it is not tied."""
    keys = jax.random.split(jax.random.key(seed))
    shape = (TARGET.config.vocab_size, TARGET.config.hidden_size)
    # Small, so that the residual stream is not just the mask token's embedding again.
    embedding = 0.1 * jax.random.normal(keys[0], shape)
    return EmbeddingAndHead(embedding, None if tied else jax.random.normal(keys[1], shape))


def room(**overrides: Any) -> Room:
    """Room for 4 sequences of 300 positions, with float32 features."""
    settings: dict[str, Any] = {
        "max_sequences": 4,
        "max_context_tokens": 300,
        "max_feature_rows": 32,
        "feature_dtype": np.dtype(np.float32),
        "projected": False,
    }
    return Room(**{**settings, **overrides})


def make_method(
    drafter: Drafter[DFlash],
    target: EmbeddingAndHead,
    on_recompilation: Callable[[], None] = lambda: None,
    **overrides: Any,
) -> CompiledMethod:
    """A method with that room, but for `overrides`."""
    return CompiledMethod(drafter, target, room(**overrides), on_recompilation)
