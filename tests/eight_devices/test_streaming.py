"""Weights go from files straight to the devices that hold them: a part at a time, and few bytes."""

import gc
import json
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from tests.models.builders import random_decoder, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.mlp import GatedMLP
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import Placement, model_mesh
from blockdraft_models.families.published_config import config_to_hf
from blockdraft_models.families.table import tensor_names
from blockdraft_models.weights.huggingface import Index, SafetensorsWeights
from blockdraft_models.weights.loading import load_decoder, load_embedding_and_head
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_runtime.event_loop import return_free_memory

MOST_OF_LARGEST_FILE = 1.3
LARGE = tiny_config(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1536,
    num_layers=6,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    tie_word_embeddings=False,
)


def placed_on(devices: int) -> Placement:
    return Placement(model_mesh(jax.devices()[:devices]))


def write_shards(config: DecoderConfig, directory: Path, most_bytes: int) -> int:
    """Write random float32 weights; return the size of the largest file."""
    rng = np.random.default_rng(0)
    shards: list[dict[str, np.ndarray]] = [{}]
    for name in tensor_names(config):
        weight = rng.standard_normal(name.shape, np.float32)
        if sum(w.nbytes for w in shards[-1].values()) + weight.nbytes > most_bytes:
            shards.append({})
        shards[-1][name.hf] = weight
    weight_map = {}
    for index, shard in enumerate(shards):
        file = f"model-{index:05}.safetensors"
        save_file(shard, directory / file)
        weight_map.update(dict.fromkeys(shard, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(config_to_hf(config)))
    assert len(shards) > 3
    return max(file.stat().st_size for file in directory.glob("*.safetensors"))


class HostMemory:
    """The most memory of this process that holds no weight of a device, while loading.

    Simulated devices keep their weights in the same memory as the host. `resident` is the peak of
    anonymous memory (pages of mapped files are not) less the weights reported as placed; it sees
    whatever any library allocates, but is sampled. `allocated` is the exact peak of what NumPy and
    Python allocated. XLA's buffers are no part of that, but a simulated device may take over an
    array of the host as its own, which it does where the array was made without conversion.
    """

    def __init__(self) -> None:
        self.allocated, self.resident, self.placed = 0, 0, 0
        self._done = threading.Event()

    def __enter__(self) -> "HostMemory":
        self._before = _anonymous_bytes()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.is_set():
            # In this order: what is placed between the two, however long this thread waits for its
            # turn there, is not taken for what the host holds.
            resident = _anonymous_bytes() - self._before
            self.resident = max(self.resident, resident - self.placed)
            time.sleep(0.0005)


def _anonymous_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        [line] = (line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_host_never_holds_much(tmp_path: Path, dtype: Any) -> None:
    largest = write_shards(LARGE, tmp_path, most_bytes=24 << 20)
    memory = HostMemory()
    heard: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        memory.placed = done
        heard.append((done, total))

    # Libraries allocate at first; what is freed but kept would hide what comes.
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path / "small")
    load_decoder(tmp_path / "small", dtype=dtype, placement=placed_on(8))
    gc.collect()
    return_free_memory()
    with memory:
        decoder, _ = load_decoder(tmp_path, dtype=dtype, placement=placed_on(8), progress=progress)

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(decoder)))
    assert held > 2.5 * largest * jnp.dtype(dtype).itemsize / 4, "the test would prove nothing"
    if dtype == jnp.bfloat16:
        assert memory.allocated < MOST_OF_LARGEST_FILE * largest
    assert memory.resident < MOST_OF_LARGEST_FILE * largest
    assert [total for _, total in heard] == [held] * len(heard)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (held, held)


# Each two of them together.
@pytest.mark.parametrize(
    ("kind", "devices", "weights"),
    [("llama", 2, "float"), ("llama", 8, "int8"), ("qwen3", 2, "int8"), ("qwen3", 8, "float")],
)
def test_every_device_gets_its_part(
    kind: Any, devices: int, weights: WeightFormat, tmp_path: Path
) -> None:
    config = tiny_config(kind, num_heads=8, num_kv_heads=4, attention_bias=True)
    decoder = random_decoder(config)
    write_hf_checkpoint(decoder, tmp_path / "hf")
    write_gguf(decoder, tmp_path / "model.gguf")
    placement = placed_on(devices)
    alone, _ = load_decoder(tmp_path / "hf", dtype=jnp.float32, weights=weights)
    expected = nnx.to_flat_state(nnx.state(alone if weights == "int8" else decoder))
    for path in (tmp_path / "hf", tmp_path / "model.gguf"):
        divided, _ = load_decoder(path, dtype=jnp.float32, weights=weights, placement=placement)
        for (name, ours), (_, theirs) in zip(
            nnx.to_flat_state(nnx.state(divided)), expected, strict=True
        ):
            where = placement.sharding(ours.get_metadata()["out_sharding"], config)
            assert ours.get_raw_value().sharding.is_equivalent_to(where, ours.ndim), name
            assert len(ours.get_raw_value().sharding.device_set) == devices
            np.testing.assert_array_equal(ours[...], theirs[...])
        mlp = divided.layers[0].mlp
        assert isinstance(mlp, GatedMLP)
        gate, down = mlp.gate, mlp.down
        assert gate.weight[...].addressable_shards[0].data.shape == (64 // devices, 32)
        assert down.weight[...].addressable_shards[0].data.shape == (32, 64 // devices)
        if gate.scale is not None and down.scale is not None:
            assert gate.scale[...].addressable_shards[0].data.shape == (64 // devices,)
            # Rows cut in two have the scale of the whole row, which every device holds.
            assert down.scale[...].addressable_shards[0].data.shape == (32,)
        assert (gate.scale is None) == (weights == "float")


def test_scanned_layers_stay_where_they_were(tmp_path: Path) -> None:
    write_hf_checkpoint(random_decoder(tiny_config(num_heads=8, num_kv_heads=8)), tmp_path)
    placement = placed_on(8)
    loaded, _ = load_decoder(tmp_path, dtype=jnp.float32, weights="int8", placement=placement)
    layers = [np.asarray(layer.mlp.up.weight[...]) for layer in loaded.layers]
    mlp = ScannedDecoder(loaded, placement).layers[0].mlp
    assert isinstance(mlp, GatedMLP)
    up = mlp.up
    assert up.scale is not None
    np.testing.assert_array_equal(up.weight[...], np.stack(layers))
    assert up.weight[...].addressable_shards[0].data.shape == (3, 8, 32)
    assert up.scale[...].addressable_shards[0].data.shape == (3, 8)


def test_of_a_divided_weight_only_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hf_checkpoint(random_decoder(tiny_config("qwen3")), tmp_path)
    rows: dict[str, list[tuple[int, ...]]] = {}
    real = SafetensorsWeights.read_part

    def spy(self: SafetensorsWeights, name: str, index: Index) -> Any:
        part = real(self, name, index)
        rows.setdefault(name, []).append(part.shape)
        return part

    monkeypatch.setattr(SafetensorsWeights, "read_part", spy)
    load_embedding_and_head(tmp_path, dtype=jnp.float32, placement=placed_on(4))
    load_decoder(tmp_path, dtype=jnp.float32, placement=placed_on(4))
    assert rows.pop("model.norm.weight") == [(32,)]
    assert rows.pop("model.embed_tokens.weight") == [(65, 32)] * 8
    assert rows.pop("lm_head.weight") == [(65, 32)] * 8
    assert rows.pop("model.layers.2.mlp.down_proj.weight") == [(32, 16)] * 4
    assert rows.pop("model.layers.2.self_attn.q_proj.weight") == [(8, 32)] * 4
    # Two key heads on four devices: all of them everywhere, read once.
    assert rows.pop("model.layers.2.self_attn.k_proj.weight") == [(16, 32)]
