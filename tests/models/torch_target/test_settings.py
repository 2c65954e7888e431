"""Settings of our own families, against the configurations and logits of transformers.

`make test-torch` runs it: where there is no PyTorch it is skipped.
"""

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tests.models.builders import run_dense
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from blockdraft_models.errors import CheckpointError
from blockdraft_models.families.family import WITHOUT_EFFECT
from blockdraft_models.families.published_config import config_from_hf
from blockdraft_models.families.table import FAMILIES, family_of_model_type
from blockdraft_models.weights.loading import load_decoder

MODEL_TYPES = [name for family in FAMILIES for name in (family.model_type, *family.same_as)]
EXAMPLES = 8
VOCAB, LENGTH = 64, 40
# Tokens are those that the files name: a default of another vocabulary would end texts.
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    **dict.fromkeys(TOKENS),
}
EXPERTS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
FACTORS = {"short_factor": [1.0, 1.2, 1.4, 2.0], "long_factor": [2.0, 3.0, 4.0, 8.0]}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: list[Any] = [
    None,
    {},
    {"rope_type": "default", "rope_theta": 300.0},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 4, "rope_theta": 500.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"type": "yarn", "factor": 2.0, "beta_fast": 16, "attention_factor": 0.9},
    {"rope_type": "yarn", "factor": 8.0, "truncate": False, "rope_theta": 20.0},
    {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.9},
    {**LLAMA3, "original_max_position_embeddings": 16},
    {**LLAMA3, "rope_theta": 100.0},
    {"rope_type": "longrope", **FACTORS, "original_max_position_embeddings": 64},
    {"type": "longrope", "factor": 4.0, **FACTORS},
    {"type": "su", **FACTORS},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "linear", "factor": 8.0}},
    {"full_attention": {"rope_theta": 70.0}, "sliding_attention": {"rope_theta": 30.0}},
    {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
]
# What any file may say; a family that does not read it must say so or compute the same.
CHOICES: dict[str, list[Any]] = {
    "rope_scaling": ROPES,
    "rope_parameters": ROPES,
    "rope_theta": [100.0, 10000, None],
    "rope_local_base_freq": [20.0, 5000.0],
    "original_max_position_embeddings": [16, 32, 128],
    "partial_rotary_factor": [0.5, 1.0],
    "max_position_embeddings": [64, 128, 512],
    "sliding_window": [None, 4, 9, 100, 4096],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1, 3],
    "layer_types": [None, KINDS, ["full_attention"] * 3],
    "sliding_window_pattern": [1, 2, 3],
    "num_key_value_heads": [None, 1, 4],
    "head_dim": [None, 4, 16],
    "rms_norm_eps": [1e-3, 1e-1],
    "attention_bias": [True, False],
    "mlp_bias": [True, False],
    "tie_word_embeddings": [True, False],
    "query_pre_attn_scalar": [4, 16, 256],
    "norm_topk_prob": [True, False],
    "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [1]],
    "swiglu_limit": [7.0, 3.0],
    "swiglu_alpha": [1.702, 1.0],
    "final_logit_softcapping": [None, 3.0],
    "attn_logit_softcapping": [None, 3.0],
    "use_bidirectional_attention": [False, True],
    "hidden_act": ["silu", "gelu"],
    "hidden_activation": ["gelu_pytorch_tanh", "silu"],
}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_setting_of_transformers_is_read_without_effect_or_refused(model_type: str) -> None:
    family = family_of_model_type(model_type)
    plain = {"model_type": model_type, **SIZES, **EXPERTS.get(model_type, {})}
    for field in fields(CONFIG_MAPPING[model_type]):
        name = field.name
        if name in family.keys:
            # None is what has to be there, or follows from others.
            default = family.keys[name]
            assert default in (None, field.default) or name == "rope_parameters", name
            continue
        changed = {**plain, name: "odd"}
        if name in WITHOUT_EFFECT:
            assert config_from_hf(changed) == config_from_hf(plain)
        else:
            with pytest.raises(ValueError, match=f"^{name} in config.json is not supported"):
                config_from_hf(changed)


@pytest.mark.parametrize("seed", range(EXAMPLES))
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_random_settings_are_those_of_transformers_or_refused(
    model_type: str, seed: int, tmp_path: Path
) -> None:
    config = {"model_type": model_type, **SIZES, **EXPERTS.get(model_type, {})}
    rng = random.Random(f"{model_type} {seed}")
    keys = family_of_model_type(model_type).keys
    own, other = ([name for name in CHOICES if (name in keys) is mine] for mine in (True, False))
    for name in rng.sample(own, rng.randint(1, 5)) + rng.sample(other, rng.random() < 0.1):
        config[name] = rng.choice(CHOICES[name])
    for name in rng.sample(["head_dim", "max_position_embeddings"], rng.randint(0, 1)):
        config.pop(name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        theirs = written(tmp_path, seed)
    except Exception as error:  # whatever transformers does not compute
        pytest.skip(f"transformers: {error}")
    tokens = torch.randint(0, VOCAB, (2, LENGTH))
    try:
        decoder, checkpoint = load_decoder(tmp_path, dtype=jnp.float32)
    except CheckpointError as error:
        pytest.skip(f"refused: {error}")
    tokens = tokens[:, : checkpoint.config.max_position_embeddings]
    with torch.no_grad():
        expected = theirs(tokens).logits.numpy()
    logits, _ = run_dense(decoder, tokens.numpy())
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def written(directory: Path, seed: int) -> Any:
    """Write random weights beside a `config.json`, and return the module that has them."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(directory), attn_implementation="eager"
    ).eval()
    for parameter in module.parameters():
        spread = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        parameter.data += spread * torch.randn_like(parameter)
    text = (directory / "config.json").read_text()
    module.save_pretrained(directory)
    (directory / "config.json").write_text(text)
    (directory / "generation_config.json").unlink(missing_ok=True)
    module(torch.zeros((1, 4), dtype=torch.long))
    return module
