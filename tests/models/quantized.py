"""Decoders with int8 weights, and what they stand for in float64."""

from pathlib import Path

import numpy as np
from tests.models.reference_decoder import params_from_decoder
from tests.models.tiny import write_hf_checkpoint

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import load_decoder


def int8_decoder(decoder: Decoder, directory: Path) -> Decoder:
    """Write a decoder and load it with int8 weights."""
    write_hf_checkpoint(decoder, directory)
    return load_decoder(directory, dtype=decoder.embedding.table.dtype, weights="int8")[0]


def dequantized_params(decoder: Decoder) -> dict[str, np.ndarray]:
    """Return the weights of an unrolled int8 decoder as the reference decoder takes them."""
    params = params_from_decoder(decoder)
    matrices = [path for path in params if path.removesuffix("weight") + "scale" in params]
    assert len(matrices) == 7 * decoder.config.num_layers + (decoder.head is not None)
    for path in matrices:
        scale = params.pop(path.removesuffix("weight") + "scale")
        params[path] = params[path] * scale[:, None]
    return params
