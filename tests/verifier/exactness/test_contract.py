"""A position's bits depend on the tokens up to it: on tiny targets of every kind, in bfloat16.

The default target goes through the same in tests/e2e/test_lossless.py.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.quantized import int8_decoder
from tests.models.tiny import (
    LIKE_GEMMA3,
    LIKE_GEMMA4,
    LIKE_GEMMA4_SHARED,
    LIKE_GPT_OSS,
    LIKE_GRANITE,
    LIKE_OLMO3,
    LIKE_QWEN3_5,
    LIKE_QWEN3_NEXT,
    tiny_config,
)
from tests.verifier.exactness.contract import Contract

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.weights.loading import load_decoder
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner

TARGETS = Path(__file__).parents[2] / "golden" / "targets"
SETTINGS = EngineSettings(
    page_size=8,
    num_pages=160,
    scheduler=SchedulerSettings(max_sequences=4, max_step_tokens=16, max_context_tokens=256),
    dtype="bfloat16",
)
# Of the usual widths, scanned and int8 layers go through it below.
CONFIGS: dict[str, dict[str, Any]] = {
    # Heads as wide as those of published models, and one key head for all queries.
    "wide heads": {"kind": "qwen3", "head_dim": 64, "hidden_size": 96, "num_kv_heads": 1},
    # Widths that divide evenly by nothing, and as many key heads as query heads.
    "odd": {"kind": "llama", "head_dim": 20, "hidden_size": 44, "num_heads": 3, "num_kv_heads": 3},
    "heads of two widths": LIKE_GEMMA4,
    "shared keys": {**LIKE_GEMMA4_SHARED, "num_layers": 4},
    "norms behind": {**LIKE_OLMO3, **LIKE_GRANITE},
    "states and experts": LIKE_QWEN3_NEXT,
}


STATES = {**LIKE_QWEN3_5, "recurrent": (True, False), "num_layers": 2}
PERIODS = {**STATES, "recurrent": (True, False) * 2, "num_layers": 4}


def check(decoder: Decoder) -> None:
    runner = ModelRunner(decoder, SETTINGS)
    runner.compile(NO_FEATURES, 8)
    # Two chunks of the context and a part of the third.
    text = np.random.default_rng(0).integers(0, runner.model.vocab_size, 150).tolist()
    contract = Contract(runner, text)
    for seed in range(3):
        contract.check(seed)


def config(**shape: Any) -> DecoderConfig:
    # What a third layer computes, the second does: fewer to compile.
    return tiny_config(**{"num_layers": 2, **shape})


def decoder_of(config: DecoderConfig) -> Decoder:
    return Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))


@pytest.mark.usefixtures("arithmetic")
def test_windows_sinks_and_experts() -> None:
    check(decoder_of(config(**{**LIKE_GEMMA3, **LIKE_GPT_OSS})))


@pytest.mark.usefixtures("arithmetic")
def test_states() -> None:
    check(decoder_of(config(**STATES)))


def test_states_in_float32() -> None:
    check(Decoder(config(**LIKE_QWEN3_NEXT), dtype=jnp.float32, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("name", CONFIGS)
def test_targets_of_every_kind(name: str) -> None:
    check(decoder_of(config(**CONFIGS[name])))


@pytest.mark.parametrize("shape", [{"kind": "qwen3"}, CONFIGS["shared keys"], PERIODS])
def test_scanned_layers(shape: dict[str, Any]) -> None:
    check(ScannedDecoder(decoder_of(config(**shape))))


def test_int8_weights(tmp_path: Path) -> None:
    check(int8_decoder(decoder_of(config()), tmp_path))


@pytest.mark.usefixtures("arithmetic")
def test_latent_attention() -> None:
    check(load_decoder(TARGETS / "deepseek-v3", dtype=jnp.bfloat16)[0])


def test_latent_attention_in_scanned_layers() -> None:
    check(ScannedDecoder(load_decoder(TARGETS / "deepseek-v3", dtype=jnp.bfloat16)[0]))


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss", "gemma4-moe", "glm4-moe-lite"])
def test_int8_experts(name: str) -> None:
    check(load_decoder(TARGETS / name, dtype=jnp.bfloat16, weights="int8")[0])
