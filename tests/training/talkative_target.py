"""A tiny target that speaks printable ASCII and ends its turns, so that it can talk to itself."""

from pathlib import Path

import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.models.tiny import IM_END, tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.model import Decoder

PRINTABLE = range(ord(" "), ord("~"))
# Of the end against any one character: turns of some 20 characters.
END_BIAS = 0.35
UNPRINTABLE_BIAS = -100.0
CONSTANT = 10.0


def write_talkative_target(directory: Path, seed: int = 0) -> Path:
    """Write a random target of one layer whose logits are biased towards turns of text."""
    config = tiny_config("qwen3", num_layers=1)
    write_hf_checkpoint(Decoder(config, rngs=nnx.Rngs(seed)), directory)
    path = directory / "model.safetensors"
    weights = {name: np.array(weight) for name, weight in load_file(path).items()}
    # A hidden element that is always large makes a bias of the head's weights for it.
    weights["model.embed_tokens.weight"][:, 0] = CONSTANT
    head = weights["lm_head.weight"]
    head[:, 0] = UNPRINTABLE_BIAS
    head[PRINTABLE, 0] = 0.0
    head[IM_END, 0] = END_BIAS
    save_file(weights, path, metadata={"format": "pt"})
    return directory
