"""What is known of a target of any family, with and without PyTorch."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.errors import CheckpointError, ModelError
from blockdraft_models.torch_target.loading import load_torch_decoder
from blockdraft_models.weights.loading import (
    load_checkpoint_config,
    load_decoder,
    load_embedding_and_head,
)


@pytest.fixture
def glm4(tmp_path: Path) -> Path:
    """Return a target that says to be of a family that is not ours."""
    write_hf_checkpoint(random_decoder(tiny_config("qwen3")), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "glm4"}))
    return tmp_path


def test_its_sizes_and_weights_are_known(glm4: Path) -> None:
    shared, checkpoint = load_embedding_and_head(glm4, dtype=jnp.float32)
    config = checkpoint.config
    assert (config.family, config.num_layers, config.num_kv_heads) == ("glm4", 3, 2)
    file = glm4 / "model.safetensors"
    tensors = load_file(file)
    np.testing.assert_array_equal(shared.embedding, tensors["model.embed_tokens.weight"])
    assert shared.head is not None
    np.testing.assert_array_equal(shared.head, tensors["lm_head.weight"])

    del tensors["lm_head.weight"]
    tensors["scale"] = np.array(1.0, np.float32)
    save_file(tensors, file)
    tied = load_checkpoint_config(glm4)
    assert tied.config.tie_word_embeddings
    tensors["scale"] = np.array(2.0, np.float32)
    save_file(tensors, file)
    assert load_checkpoint_config(glm4).fingerprint != tied.fingerprint

    tensors["transformer.wte.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"missing: model\.embed_tokens\.weight"):
        load_embedding_and_head(glm4, dtype=jnp.float32)


def test_our_decoder_refuses_it_and_says_what_serves_it(glm4: Path) -> None:
    said = r"model_type 'glm4' is not supported .*; --implementation torch serves others"
    with pytest.raises(CheckpointError, match=said):
        load_decoder(glm4, dtype=jnp.float32)


def test_without_pytorch_it_is_said_what_to_install(
    glm4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "blockdraft_models.torch_target.module", raising=False)
    with pytest.raises(ModelError, match=r"needs pip install 'blockdraft\[torch\]'"):
        load_torch_decoder(glm4, dtype=jnp.float32)
