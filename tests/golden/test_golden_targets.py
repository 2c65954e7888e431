"""Public checkpoint formats, loaded and run, against what Hugging Face transformers computes."""

import json
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.builders import run_dense, write_gguf

from blockdraft_models.decoder.experts import Experts
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.loading import load_decoder, load_embedding_and_head
from blockdraft_models.weights.resolve import resolve_target

TARGETS = Path(__file__).parent / "targets"
NAMES = sorted(path.stem for path in TARGETS.glob("*.npz"))
CONTINUED = 100


@pytest.mark.parametrize("name", ["qwen2", "qwen3-moe"])
def test_gguf_files_of_the_same_weights_are_the_same_model(name: str, tmp_path: Path) -> None:
    decoder, checkpoint = load_decoder(TARGETS / name, dtype=jnp.float32)
    write_gguf(decoder, tmp_path / "model.gguf")
    again, same = load_decoder(tmp_path / "model.gguf", dtype=jnp.float32)
    assert same.fingerprint == checkpoint.fingerprint
    tokens = np.load(TARGETS / f"{name}.npz")["token_ids"]
    np.testing.assert_array_equal(run_dense(again, tokens)[0], run_dense(decoder, tokens)[0])


@pytest.mark.parametrize(
    ("name", "body", "head", "beside"),
    [
        ("gemma3", "language_model.model.", "language_model.lm_head.weight", "vision_tower."),
        ("gemma4", "model.language_model.", "lm_head.weight", "model.audio_tower."),
    ],
)
def test_the_text_model_of_one_for_images_is_read(
    name: str, body: str, head: str, beside: str, tmp_path: Path
) -> None:
    source = TARGETS / name
    tensors = load_file(source / "model.safetensors")
    wrapped = {body + tensor.removeprefix("model."): tensors[tensor] for tensor in tensors}
    wrapped[f"{beside}patches.weight"] = np.zeros((2, 2), np.float32)
    save_file(wrapped, tmp_path / "model.safetensors")
    text = json.loads((source / "config.json").read_text())
    config = {"model_type": name, "eos_token_id": [1, 3], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, checkpoint = load_decoder(tmp_path, dtype=jnp.float32)
    assert checkpoint.fingerprint == load_decoder(source, dtype=jnp.float32)[1].fingerprint
    # Whether the head is the embedding, the whole model says.
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=f"missing: {re.escape(head)}"):
        load_decoder(tmp_path, dtype=jnp.float32)


def test_keys_that_no_layer_uses_are_left_alone(tmp_path: Path) -> None:
    """Published files of Gemma 4 have them."""
    source = TARGETS / "gemma4-shared"
    tensors = load_file(source / "model.safetensors")
    key = "model.layers.{}.self_attn.k_proj.weight"
    shutil.copy(source / "config.json", tmp_path)
    save_file({**tensors, key.format(5): tensors[key.format(1)]}, tmp_path / "model.safetensors")
    _, checkpoint = load_decoder(tmp_path, dtype=jnp.float32)
    assert checkpoint.fingerprint == load_decoder(source, dtype=jnp.float32)[1].fingerprint


def test_what_corrects_the_choice_of_experts_is_never_rounded() -> None:
    stored = load_file(TARGETS / "deepseek-v3" / "model.safetensors")
    decoder, _ = load_decoder(TARGETS / "deepseek-v3", dtype=jnp.bfloat16)
    experts = decoder.layers[1].mlp
    assert isinstance(experts, Experts)
    assert experts.correction is not None
    correction = stored["model.layers.1.mlp.gate.e_score_correction_bias"]
    np.testing.assert_array_equal(experts.correction[...], correction)
    assert not np.array_equal(correction, jnp.asarray(correction, jnp.bfloat16))


def test_qwen3_5_is_read_as_it_is_published(tmp_path: Path) -> None:
    """Beside images and layers that draft, experts are in one tensor there."""
    source = TARGETS / "qwen3-5-moe"
    tensors = load_file(source / "model.safetensors")
    published, experts = {}, re.compile(r"(.*experts)\.(\d+)\.(\w+)_proj\.weight")
    for name in sorted(tensors):
        match = experts.fullmatch(name)
        if match is None:
            published[name] = tensors[name]
        elif match[2] == "0":
            joint = ("gate", "up") if match[3] != "down" else ("down",)
            stored = [
                np.concatenate([tensors[f"{match[1]}.{e}.{part}_proj.weight"] for part in joint])
                for e in range(6)
            ]
            published[f"{match[1]}.{'_'.join(joint)}_proj"] = np.stack(stored)
    assert len(published) < len(tensors) / 1.5
    body = "model.language_model."
    published = {
        name.replace("model.", body) if name.startswith("model.") else name: published[name]
        for name in published
    }
    for name in ("model.visual.blocks.0.attn.proj.weight", "mtp.layers.0.mlp.gate.weight"):
        published[name] = np.zeros((2, 2), np.float32)
    save_file(published, tmp_path / "model.safetensors")
    text = json.loads((source / "config.json").read_text())
    config = {"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    decoder, checkpoint = load_decoder(tmp_path, dtype=jnp.float32)
    same, expected = load_decoder(source, dtype=jnp.float32)
    assert checkpoint.fingerprint == expected.fingerprint
    tokens = np.load(TARGETS / "qwen3-5-moe.npz")["token_ids"]
    np.testing.assert_array_equal(run_dense(decoder, tokens)[0], run_dense(same, tokens)[0])


def test_there_are_targets() -> None:
    assert len(NAMES) == 28


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_features_are_those_of_transformers(name: str) -> None:
    golden = np.load(TARGETS / f"{name}.npz")
    decoder, checkpoint = load_decoder(resolve_target(str(TARGETS / name)), dtype=jnp.float32)
    capture = tuple(int(layer) for layer in golden["capture"])

    logits, output = run_dense(decoder, golden["token_ids"], capture)

    scale = np.abs(golden["logits"]).max()
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=1e-5 * scale)
    captured = np.asarray(output.captured).reshape(golden["captured"].shape)
    np.testing.assert_allclose(captured, golden["captured"], rtol=1e-4, atol=1e-5 * scale)
    shared, same = load_embedding_and_head(TARGETS / name, dtype=jnp.float32)
    assert same == checkpoint
    again = np.asarray(shared.logits(output.hidden)).reshape(golden["logits"].shape)
    if cap := decoder.config.logit_cap:
        again = cap * np.tanh(again / cap)
    np.testing.assert_allclose(again, golden["logits"], rtol=1e-4, atol=1e-5 * scale)

    if decoder.config.diffusion is not None:
        return  # `tests/verifier/test_diffusion.py` completes the prompt
    # Each token of the greedy continuation is the likeliest one after those before.
    continued = golden["continued"]
    chosen, _ = run_dense(decoder, continued)
    prompt = continued.shape[1] - CONTINUED
    assert chosen[0, prompt - 1 : -1].argmax(-1).tolist() == continued[0, prompt:].tolist()
