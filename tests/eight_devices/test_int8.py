"""Int8 weights divided over devices are those of one device, bit for bit."""

from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.builders import random_decoder, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import Placement, model_mesh
from blockdraft_models.weights.loading import load_decoder


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_every_device_gets_its_part(
    kind: Literal["llama", "qwen3"], devices: int, tmp_path: Path
) -> None:
    config = tiny_config(kind, num_heads=8, num_kv_heads=4, attention_bias=True)
    original = random_decoder(config)
    write_hf_checkpoint(original, tmp_path / "hf")
    write_gguf(original, tmp_path / "model.gguf")
    placement = Placement(model_mesh(jax.devices()[:devices]))
    for path in (tmp_path / "hf", tmp_path / "model.gguf"):
        alone, _ = load_decoder(path, dtype=jnp.float32, weights="int8")
        divided, _ = load_decoder(path, dtype=jnp.float32, weights="int8", placement=placement)
        expected = nnx.to_flat_state(nnx.state(alone))
        for (name, ours), (_, theirs) in zip(
            nnx.to_flat_state(nnx.state(divided)), expected, strict=True
        ):
            where = placement.sharding(ours.get_metadata()["out_sharding"], config)
            assert ours.get_raw_value().sharding.is_equivalent_to(where, ours.ndim), name
            np.testing.assert_array_equal(ours[...], theirs[...])
        # Rows cut in two have the scale of the whole row, which every device holds.
        down = divided.layers[0].mlp.down
        assert down.scale is not None
        assert down.weight[...].addressable_shards[0].data.shape == (32, 64 // devices)
        assert down.scale[...].addressable_shards[0].data.shape == (32,)
        gate = divided.layers[0].mlp.gate
        assert gate.scale is not None
        assert gate.weight[...].addressable_shards[0].data.shape == (64 // devices, 32)
        assert gate.scale[...].addressable_shards[0].data.shape == (64 // devices,)


def test_scanned_layers_stay_where_they_were(tmp_path: Path) -> None:
    config = tiny_config(num_heads=8, num_kv_heads=8)
    write_hf_checkpoint(random_decoder(config), tmp_path)
    placement = Placement(model_mesh(jax.devices()[:8]))
    loaded, _ = load_decoder(tmp_path, dtype=jnp.float32, weights="int8", placement=placement)
    layers = [np.asarray(layer.mlp.up.weight[...]) for layer in loaded.layers]
    up = ScannedDecoder(loaded, placement).layer.mlp.up
    assert up.scale is not None
    np.testing.assert_array_equal(up.weight[...], np.stack(layers))
    assert up.weight[...].addressable_shards[0].data.shape == (3, 8, 32)
    assert up.scale[...].addressable_shards[0].data.shape == (3, 8)
