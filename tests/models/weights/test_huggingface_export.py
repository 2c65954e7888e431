"""Checkpoints written for other programs: the same weights, the same function.

`tests/bench/peers` has transformers read one.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.builders import random_decoder, run_dense, write_gguf
from tests.models.tiny import Kind, tiny_config

from blockdraft_models.weights.checkpoint import export_huggingface
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder

TOKENS = np.random.default_rng(0).integers(0, 256, (2, 48))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_gguf_file_becomes_a_directory_of_the_same_weights(kind: Kind, tmp_path: Path) -> None:
    decoder, source = random_decoder(tiny_config(kind)), tmp_path / "source.gguf"
    write_gguf(decoder, source)
    written = export_huggingface(source, tmp_path / "out")
    assert written == load_checkpoint_config(tmp_path / "out")
    assert written.fingerprint == load_checkpoint_config(source).fingerprint
    loaded, _ = load_decoder(tmp_path / "out", dtype=jnp.float32)
    assert np.array_equal(run_dense(loaded, TOKENS)[0], run_dense(decoder, TOKENS)[0])
