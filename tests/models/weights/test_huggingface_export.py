"""Checkpoints written for other programs: the same weights, the same function."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.builders import LLAMA3_SCALING, random_decoder, run_dense, write_gguf
from tests.models.tiny import Kind, tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.config import RopeScaling
from blockdraft_models.weights.checkpoint import export_huggingface
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder

TOKENS = np.random.default_rng(0).integers(0, 256, (2, 48))


def source_of(kind: Kind, folder: Path, scaling: RopeScaling | None = None) -> tuple[Path, Any]:
    decoder = random_decoder(tiny_config(kind, rope_scaling=scaling))
    if scaling is None:
        write_gguf(decoder, folder / "source.gguf")
        return folder / "source.gguf", decoder
    write_hf_checkpoint(decoder, folder / "source")
    return folder / "source", decoder


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_gguf_file_becomes_a_directory_of_the_same_weights(kind: Kind, tmp_path: Path) -> None:
    source, decoder = source_of(kind, tmp_path)
    written = export_huggingface(source, tmp_path / "out")
    assert written == load_checkpoint_config(tmp_path / "out")
    assert written.fingerprint == load_checkpoint_config(source).fingerprint
    loaded, _ = load_decoder(tmp_path / "out", dtype=jnp.float32)
    assert np.array_equal(run_dense(loaded, TOKENS)[0], run_dense(decoder, TOKENS)[0])


@pytest.mark.parametrize(
    ("kind", "scaling"), [("llama", None), ("qwen3", None), ("llama", LLAMA3_SCALING)]
)
def test_transformers_computes_the_same_logits(
    kind: Kind, scaling: RopeScaling | None, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source, decoder = source_of(kind, tmp_path, scaling)
    export_huggingface(source, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, local_files_only=True
    )
    with torch.inference_mode():
        theirs = model(torch.from_numpy(TOKENS)).logits.numpy()
    ours, _ = run_dense(decoder, TOKENS)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4 * np.abs(ours).max())
