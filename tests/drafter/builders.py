"""Tiny drafters and methods for the tests."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.models.tiny import tiny_config

from blockdraft_drafter.checkpoint import build, fingerprint, published_arrays, save_drafter
from blockdraft_drafter.compiled.definition import DraftConfig, Drafter, MethodDefinition
from blockdraft_drafter.compiled.programs import Capacity
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_models.weights.loading import Checkpoint, EmbeddingAndHead

TARGET = Checkpoint(
    tiny_config(num_layers=8, vocab_size=64, bos_token_id=1, eos_token_ids=(2,)),
    "0123456789abcdef",
    Path("tiny"),
)
VOCAB, HIDDEN = TARGET.config.vocab_size, TARGET.config.hidden_size
CHAIN_SIZE = 5
"""Block size of the EAGLE-3 drafters."""
WEIGHTS = "model.safetensors"
# How the layers of a DFlash drafter may attend.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "published": {},
    "sliding": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6},
    "window_within_block": {"layer_types": ("sliding_attention",) * 2, "sliding_window": 2},
    "causal": {"is_causal": True},
    "causal_sliding": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 3,
        "is_causal": True,
    },
}


DFLASH2: dict[str, Any] = {
    "layer_types": ("sliding_attention",) * 2,
    "sliding_window": 6,
    "conv_group_size": 16,
    "selector_rank": 3,
    "selector_top_k": 16,
    "output_multiplier": 1.5,
    "final_logit_softcapping": 4.0,
}
"""Everything that a DFlash 2 drafter may have."""


def drafter_config(**overrides: Any) -> DFlashConfig:
    """A two-layer drafter for TARGET with 3 features and a block of 4."""
    config = DFlashConfig.default_for(TARGET.config, block_size=4, num_features=3)
    return replace(config, **overrides)


def read_dflash(published: dict[str, Any]) -> DFlashConfig:
    """What a published configuration says to the drafter of TARGET."""
    return DFlashConfig.from_hf(published, TARGET.config, block_size=8)


def random_drafter(config: DFlashConfig, seed: int = 0) -> Drafter[DFlash]:
    """A drafter whose norms, and what starts at zero, are random too, so that each matters."""
    return _random(DFLASH, config, np.random.default_rng(seed), seed)


def eagle3_drafter(
    *,
    draft_vocab: int | None = None,
    own_head: bool = False,
    own_embedding: bool = False,
    qk_norm: bool = False,
    seed: int = 0,
    **overrides: Any,
) -> Drafter[Eagle3]:
    """A random drafter whose norms are random too, so that each of them matters."""
    config = Eagle3Config.default_for(TARGET.config, block_size=CHAIN_SIZE)
    config = replace(
        config,
        decoder=replace(config.decoder, qk_norm=qk_norm),
        draft_vocab_size=draft_vocab,
        **overrides,
    )
    noise = np.random.default_rng(seed)
    drafter = _random(EAGLE3, config, noise, seed)
    ids, head, embedding = None, None, None
    if draft_vocab is not None:
        ids = np.sort(noise.permutation(VOCAB)[:draft_vocab]).astype(np.int32)
    if own_head:
        head = noise.standard_normal((draft_vocab or VOCAB, HIDDEN)).astype(np.float32)
    if own_embedding:
        embedding = 0.1 * noise.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    return replace(drafter, draft_ids=ids, embedding=embedding, head=head)


def _random(
    method: MethodDefinition[Any], config: DraftConfig, noise: np.random.Generator, seed: int
) -> Drafter[Any]:
    arrays = published_arrays(method.module(config, rngs=nnx.Rngs(seed)))
    for name, array in arrays.items():
        if array.ndim != 2:
            arrays[name] = array + 0.3 * noise.standard_normal(array.shape).astype(np.float32)
        elif not array.any() or "codebook" in name:
            size = 0.1 if "kernel_projection" in name else 1.0
            arrays[name] = size * noise.standard_normal(array.shape).astype(np.float32)
    model = build(method, config, arrays, dtype=jnp.float32)
    return Drafter(method, model, fingerprint(config, arrays))


def write_drafter(
    drafter: Drafter[Any],
    directory: Path,
    tensors: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Save a drafter, then put in other tensors and fields; those that are None are removed."""
    save_drafter(drafter.model, directory, drafter.draft_ids)
    path, weights = directory / "config.json", directory / WEIGHTS
    fields = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({name: it for name, it in fields.items() if it is not None}))
    arrays = {**load_file(weights), **(tensors or {})}
    save_file({name: array for name, array in arrays.items() if array is not None}, weights)
    return directory


def target_parts(seed: int = 1, *, tied: bool = True) -> EmbeddingAndHead:
    """A random embedding, and a random head if it is not tied."""
    keys = jax.random.split(jax.random.key(seed))
    # Small, so that the residual stream is not just the mask token's embedding again.
    embedding = 0.1 * jax.random.normal(keys[0], (VOCAB, HIDDEN))
    return EmbeddingAndHead(
        embedding, None if tied else jax.random.normal(keys[1], (VOCAB, HIDDEN))
    )


def capacity(**overrides: Any) -> Capacity:
    """Capacity for 4 sequences of 300 positions, with float32 features."""
    settings: dict[str, Any] = {
        "max_sequences": 4,
        "max_context_tokens": 300,
        "max_feature_rows": 32,
        "feature_dtype": np.dtype(np.float32),
        "projected": False,
    }
    return Capacity(**{**settings, **overrides})


def measure_nothing(method: CompiledMethod, progress: object = None) -> None:
    """Replace `warm_up`: only what is drafted with is compiled."""
    method.step_seconds = (0.001, 0.001, 0.001)


def make_method(
    drafter: Drafter[Any],
    target: EmbeddingAndHead,
    on_recompilation: Callable[[], None] = lambda: None,
    **overrides: Any,
) -> CompiledMethod:
    """A method with that capacity, but for `overrides`."""
    return CompiledMethod(drafter, target, capacity(**overrides), on_recompilation)
