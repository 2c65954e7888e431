"""Reading configurations from the metadata of GGUF files, and refusing what is not computed."""

from typing import Any

import pytest
from gguf import Keys
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.rope_scaling import LinearScaling
from blockdraft_models.families.published_config import config_from_gguf

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.vocab_size": 260,
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.bos_token_id": 257,
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.eot_token_id": 259,
}


# `convert_hf_to_gguf.py` writes them; in llama.cpp they change nothing of these architectures.
GGUF_WITHOUT_EFFECT = (
    *("rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"),
    *("attention.sliding_window", "expert_weights_norm"),
    # Read with experts only.
    *("expert_feed_forward_length", "expert_used_count"),
)


def test_gguf_metadata_is_read() -> None:
    config = config_from_gguf(GGUF, ["blk.0.attn_q.bias"])
    assert config == tiny_config(name="Tiny", attention_bias=True, eos_token_ids=(258, 259))
    assert not config_from_gguf(GGUF, ["output.weight"]).tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "gemma"}, "architecture 'gemma'"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.logit_scale": 0.5}, r"llama\.logit_scale is not supported"),
        ({"llama.expert_gating_func": 2}, r"llama\.expert_gating_func is not supported"),
        ({"llama.rope.dimension_count": 4}, "a part of the head"),
        ({"llama.attention.value_length": 4}, "differ in width"),
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
    ],
)
def test_unsupported_gguf_metadata_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_gguf({**GGUF, **change}, [])


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 2.0}, 2.0),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, 4.0),
        ({"scaling.factor": 4.0, "scaling.type": "linear"}, 4.0),
        ({"scaling.factor": 4.0, "scaling.type": "none"}, None),
        ({"scaling.factor": 0.0}, None),
    ],
)
def test_gguf_rotations_are_slowed_as_in_llama_cpp(
    keys: dict[str, Any], factor: float | None
) -> None:
    metadata = {**GGUF, **{f"llama.rope.{name}": value for name, value in keys.items()}}
    scaling = config_from_gguf(metadata, []).rope_scaling
    assert scaling == (factor and LinearScaling(factor))


def test_every_setting_of_gguf_is_read_without_effect_or_refused() -> None:
    names = [
        value.replace("{arch}", "llama")
        for keys in (Keys.LLM, Keys.Attention, Keys.Rope)
        for name, value in vars(keys).items()
        if name.isupper() and "{arch}" in value
    ]
    assert len(names) > 50
    plain = config_from_gguf(GGUF, [])
    for name in names:
        try:
            changed = config_from_gguf({**GGUF, name: 24}, [])
        except ValueError:
            continue
        suffix = name.removeprefix("llama.")
        assert changed != plain or suffix in GGUF_WITHOUT_EFFECT, name
