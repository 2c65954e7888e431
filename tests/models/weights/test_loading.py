"""Checkpoints written and read back; damaged ones refused by name."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder, run_dense, shard, write_gguf
from tests.models.tiny import Kind, tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.linear import Embedding, Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope_scaling import RopeScaling
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.decoder.stored import FORMATS, Format
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.loading import (
    load_checkpoint_config,
    load_decoder,
    load_embedding_and_head,
)

TOKENS = np.arange(24).reshape(2, 12)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_hf_and_gguf_of_the_same_weights_are_the_same_model(kind: Kind, tmp_path: Path) -> None:
    decoder = random_decoder(tiny_config(kind, attention_bias=kind == "llama"))
    write_hf_checkpoint(decoder, tmp_path / "hf")
    write_gguf(decoder, tmp_path / "model.gguf")

    from_hf, hf = load_decoder(tmp_path / "hf", dtype=jnp.float32)
    from_gguf, gguf = load_decoder(tmp_path / "model.gguf", dtype=jnp.float32)

    expected = run_dense(decoder, TOKENS)[0]
    np.testing.assert_array_equal(run_dense(from_hf, TOKENS)[0], expected)
    np.testing.assert_array_equal(run_dense(from_gguf, TOKENS)[0], expected)
    assert hf.fingerprint == gguf.fingerprint
    assert len(hf.fingerprint) == 16
    assert hf.config == gguf.config == decoder.config

    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(5, 32)), jnp.float32)
    for path in (tmp_path / "hf", tmp_path / "model.gguf"):
        shared, checkpoint = load_embedding_and_head(path, dtype=jnp.float32)
        assert (shared.head is None) == checkpoint.config.tie_word_embeddings == (kind == "llama")
        np.testing.assert_array_equal(shared.logits(hidden), decoder.logits(hidden))
        np.testing.assert_array_equal(shared.embedding, decoder.embedding.table[...])


@pytest.mark.parametrize("format", FORMATS)
def test_a_gguf_is_the_same_model_as_it_is_stored(
    format: Format, arithmetic: str, tmp_path: Path
) -> None:
    config = tiny_config("llama", hidden_size=64, num_layers=2)
    path = tmp_path / "model.gguf"
    write_gguf(random_decoder(config), path, format)
    plain, expected = load_decoder(path, dtype=jnp.float32)
    progress: list[tuple[int, int]] = []
    stored, checkpoint = load_decoder(
        path,
        dtype=jnp.float32,
        weights="stored",
        progress=lambda done, total: progress.append((done, total)),
    )
    assert checkpoint == expected
    matrices = [
        part for _, part in nnx.iter_modules(stored) if isinstance(part, Linear | Embedding)
    ]
    assert len(matrices) == 1 + 7 * config.num_layers
    held = format if arithmetic == "kernels" else None
    assert all(matrix.format == held for matrix in matrices)
    np.testing.assert_array_equal(run_dense(stored, TOKENS)[0], run_dense(plain, TOKENS)[0])
    size = sum(weight.nbytes for weight in jax.tree.leaves(nnx.state(stored)))
    assert progress[-1] == (size, size)


def test_bfloat16_checkpoints_load_exactly(tmp_path: Path) -> None:
    decoder = Decoder(tiny_config("qwen3"), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    write_hf_checkpoint(decoder, tmp_path)
    loaded, _ = load_decoder(tmp_path, dtype=jnp.bfloat16)
    for ours, theirs in zip(
        jax.tree.leaves(nnx.state(loaded)), jax.tree.leaves(nnx.state(decoder)), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_shards_and_what_some_exports_repeat_do_not_matter(checkpoint: Path) -> None:
    """Old ones store rotary frequencies, rounded to the type of the weights; config says them."""
    whole, expected = load_decoder(checkpoint, dtype=jnp.float32)
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    repeated = {
        "lm_head.weight": tensors["model.embed_tokens.weight"] + 0,
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.full(4, 0.5, np.float16),
    }
    save_file({**tensors, **repeated}, file)
    shard(checkpoint, 3)
    sharded, actual = load_decoder(checkpoint, dtype=jnp.float32)
    assert actual == expected
    np.testing.assert_array_equal(run_dense(sharded, TOKENS)[0], run_dense(whole, TOKENS)[0])


def test_a_head_of_its_own_is_not_given_up_for_a_flag(checkpoint: Path) -> None:
    """Fine-tuning of a tied model may untie it and leave the flag."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    own = tensors["model.embed_tokens.weight"] + 1
    save_file({**tensors, "lm_head.weight": own}, file)
    decoder, loaded = load_decoder(checkpoint, dtype=jnp.float32)
    assert not loaded.config.tie_word_embeddings
    assert decoder.head is not None
    np.testing.assert_array_equal(decoder.head.weight[...], own)


def test_an_index_beside_the_whole_is_left_alone(checkpoint: Path) -> None:
    _, expected = load_decoder(checkpoint, dtype=jnp.float32)
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    shard(checkpoint, 2)
    file.write_bytes(whole)
    assert load_decoder(checkpoint, dtype=jnp.float32)[1] == expected


def test_llama3_factors_of_a_gguf_become_rope_scaling(tmp_path: Path) -> None:
    config = tiny_config(head_dim=64, rope_theta=500000.0)
    decoder = random_decoder(config)
    # First and last of the factors that llama.cpp writes for Llama 3.2, and one invented set.
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 64, 2) / 64)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    factors = (1 / (smooth + (1 - smooth) / 32)).astype(np.float32)
    assert (factors[0], factors[-1]) == (1, 32)
    write_gguf(decoder, tmp_path / "a.gguf", **{"rope_freqs.weight": factors})
    write_gguf(decoder, tmp_path / "b.gguf", **{"rope_freqs.weight": factors + 1})

    scaling = load_checkpoint_config(tmp_path / "a.gguf").config.rope_scaling
    assert isinstance(scaling, RopeScaling)
    assert scaling.factor == 32
    with pytest.raises(CheckpointError, match="not a published Llama 3 scaling"):
        load_checkpoint_config(tmp_path / "b.gguf")


def test_weights_are_placed_on_a_mesh(checkpoint: Path) -> None:
    mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    placed, _ = load_decoder(checkpoint, dtype=jnp.float32, placement=Placement(mesh))
    gate = placed.layers[0].mlp.gate.weight[...]
    expected = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model", None))
    assert gate.sharding == expected
    plain, _ = load_decoder(checkpoint, dtype=jnp.float32)
    np.testing.assert_array_equal(run_dense(placed, TOKENS)[0], run_dense(plain, TOKENS)[0])


def test_missing_extra_and_misshapen_tensors_are_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.9.mlp.up_proj.weight"] = np.zeros(1, np.float32)
    tensors["model.norm.weight"] = np.zeros(31, np.float32)
    save_file(tensors, file)
    said = (
        "missing: model.layers.1.mlp.up_proj.weight; "
        "unexpected: model.layers.9.mlp.up_proj.weight; "
        r"shape: model.norm.weight is \(31,\), expected \(32,\)"
    )
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint_config(checkpoint)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "cannot read"),
        ("config.json", b"[]", "JSON object"),
        ("config.json", b'{"model_type": "gpt2"}', "lacks 'hidden_size'"),
    ],
)
def test_damaged_directories_are_refused(
    checkpoint: Path, name: str, content: bytes, message: str
) -> None:
    (checkpoint / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint_config(checkpoint)


def test_other_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_checkpoint_config(tmp_path)
    with pytest.raises(CheckpointError, match="neither a directory"):
        load_checkpoint_config(tmp_path / "absent")


@pytest.mark.parametrize(("kind", "path"), [("llama", "hf"), ("qwen3", "model.gguf")])
def test_progress_is_told_in_bytes(kind: Kind, path: str, tmp_path: Path) -> None:
    decoder = random_decoder(tiny_config(kind))
    write_hf_checkpoint(decoder, tmp_path / "hf")
    write_gguf(decoder, tmp_path / "model.gguf")
    heard: list[tuple[int, int]] = []

    def hear(done: int, total: int) -> None:
        heard.append((done, total))

    load_decoder(tmp_path / path, dtype=jnp.bfloat16, progress=hear)
    total = 2 * sum(leaf.size for leaf in jax.tree.leaves(nnx.state(decoder)))
    assert heard[-1] == (total, total)
    assert heard == sorted(set(heard))

    heard.clear()
    load_embedding_and_head(tmp_path / path, dtype=jnp.bfloat16, progress=hear)
    table, tables = 2 * 260 * 32, 1 if kind == "llama" else 2
    assert heard == [(table * (i + 1), table * tables) for i in range(tables)]
