"""Modules of transformers as targets, against transformers itself and in the engine.

`make test-torch` runs it: where there is no PyTorch it is skipped.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torchax")

import torch
from tests.models.builders import run_dense
from tests.verifier.support import TINY_ENGINE, decode, link_to, make_engine, random_requests
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.errors import CheckpointError
from blockdraft_models.torch_target.loading import load_torch_decoder

VOCAB, CAPTURE, CONTINUED = 256, (1, 0), 100
# The tiny target's sizes, for its scripted drafters.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 255,
    "pad_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    # Another scale of scores, and of embeddings, residuals and logits.
    "granite": {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    # Norms with biases, rotation of a part, a tied head.
    "starcoder2": {},
    "olmo3": {"sliding_window": 10},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 10, "rope_parameters": None},
}


def written(family: str, directory: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**SIZES, **FAMILIES.get(family, {}), **changes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
        else:
            parameter.data = torch.randn_like(parameter) * parameter.shape[-1] ** -0.5
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_features_and_completions_are_those_of_transformers(
    family: str, tmp_path: Path
) -> None:
    path = written(family, tmp_path)
    decoder, _ = load_torch_decoder(path, dtype=jnp.float32)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None
    prompt = torch.randint(0, VOCAB, (2, 24))
    with torch.no_grad():
        continued = theirs.generate(prompt, do_sample=False, max_new_tokens=CONTINUED)
        expected = theirs(continued, output_hidden_states=True)

    logits, output = run_dense(decoder, continued.numpy(), CAPTURE)

    scale = expected.logits.abs().max().item()
    np.testing.assert_allclose(logits, expected.logits, rtol=1e-4, atol=1e-5 * scale)
    features = torch.cat([expected.hidden_states[layer + 1] for layer in CAPTURE], -1)
    # Of the last layer transformers has what the norm makes of it.
    first = output.captured.reshape(features.shape)[..., 32:]
    np.testing.assert_allclose(first, features[..., 32:], rtol=1e-4, atol=1e-5 * scale)
    chosen = logits[:, 23:-1].argmax(-1)
    np.testing.assert_array_equal(chosen, continued[:, 24:])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drafting_never_changes_the_output(dtype: Any, tmp_path: Path) -> None:
    decoder, _ = load_torch_decoder(written("granite", tmp_path), dtype=dtype)
    requests = random_requests(3)
    plain = [outcome.tokens for outcome in decode(make_engine(decoder), requests)]
    rng = np.random.default_rng(0)

    def often_right(position: int, anchor: int, length: int) -> list[int]:
        said = [tokens for tokens in plain if anchor in tokens[:-1]]
        after = said[0][said[0].index(anchor) + 1 :] if said and rng.random() < 0.7 else []
        return [*after, *rng.integers(0, VOCAB, length).tolist()][:length]

    outcomes = decode(make_engine(decoder, link_to(often_right), TINY_ENGINE), requests)
    assert [outcome.tokens for outcome in outcomes] == plain
    assert sum(len(outcome.events) for outcome in outcomes) < sum(map(len, plain))


def test_what_attention_alone_does_not_carry_is_refused(tmp_path: Path) -> None:
    kinds = ["conv", "full_attention"]
    with pytest.raises(CheckpointError, match="some layers do not attend"):
        load(written("lfm2", tmp_path / "convolutions", layer_types=kinds))
    with pytest.raises(CheckpointError, match="capped scores"):
        load(written("gemma2", tmp_path / "capped"))


def load(path: Path) -> Decoder:
    return load_torch_decoder(path, dtype=jnp.float32)[0]
