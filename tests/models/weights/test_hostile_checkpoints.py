"""Whatever is wrong with a checkpoint is said at once, by name, before anything is allocated."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder, shard, write_gguf
from tests.models.hostile import change_json, entry, refused, write_raw
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import load_decoder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(tiny_config())


@pytest.fixture(scope="module")
def sound(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound")
    write_hf_checkpoint(decoder, path)
    return path


@pytest.fixture
def checkpoint(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "tiny")


def load(path: Path) -> None:
    load_decoder(path, dtype=jnp.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # 10^12 parameters, in width, vocabulary or depth.
        ({"hidden_size": 1_000_000, "head_dim": 250_000}, r"embed_tokens\.weight is \(260, 32\)"),
        ({"vocab_size": 2_000_000_000}, r"expected \(2000000000, 32\)"),
        ({"num_hidden_layers": 40}, r"missing: model\.layers\.10\..* and 328 more$"),
        ({"num_hidden_layers": 10**12}, "num_layers must be at most"),
        ({"vocab_size": 10**30}, "vocab_size must be at most"),
        ({"num_hidden_layers": 2}, r"unexpected: model\.layers\.2\.input_layernorm"),
        ({"hidden_size": "32"}, "hidden_size must be a whole number, got '32'"),
        ({"intermediate_size": 64.5}, "must be a whole number"),
        ({"num_attention_heads": 0}, "num_heads must be positive"),
        ({"rope_theta": float("nan")}, "must be positive and finite"),
        ({"rms_norm_eps": float("inf")}, "must be positive and finite"),
        ({"rope_theta": 10**400}, "too large"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object"),
        ({"eos_token_id": ["</s>"]}, "'</s>' is not a token id"),
        ({"bos_token_id": 260}, "outside the vocabulary"),
    ],
)
def test_impossible_configurations(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    change_json(checkpoint / "config.json", **changes)
    with refused(message, checkpoint):
        load(checkpoint)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry([10**6, 10**6], 0, 4 * 10**12)}, b"", "not fully covered"),
        ({"a": entry([2**40, 2**40], 0, 8)}, bytes(8), "overflow"),
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12), "invalid offset"),
        ({"a": entry([2], 0, 8)}, bytes(7), "not fully covered"),
        ({"a": entry([2], 0, 8)}, bytes(99), "not fully covered"),
        ({"a": entry([-2], 0, 8)}, bytes(8), "invalid value"),
        ({"a": entry([2], 0, 8, "F1000")}, bytes(8), "unknown variant|invalid JSON"),
        ({"a\nb": entry([2], 0, 8)}, bytes(8), r"'a\\nb' is no name of a tensor"),
        ({"a" * 5000: entry([2], 0, 8)}, bytes(8), "is no name of a tensor"),
        (b'{"a":' * 100_000, b"", "cannot read"),
        (b"", b"", "cannot read"),
    ],
)
def test_headers_that_lie(checkpoint: Path, header: Any, data: bytes, message: str) -> None:
    write_raw(checkpoint / WEIGHTS, header, data)
    with refused(message, checkpoint / WEIGHTS):
        load(checkpoint)


def test_header_bombs(checkpoint: Path) -> None:
    with (checkpoint / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", 90 << 20))
        file.truncate(100 << 20)  # a hole: takes no room
    with refused("a header of 94371840 bytes", checkpoint / WEIGHTS):
        load(checkpoint)


@pytest.mark.parametrize("length", [0, 4, 8, 2000, -4])
def test_truncated_files(checkpoint: Path, length: int) -> None:
    whole = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(whole[:length])
    with refused("cannot read", checkpoint / WEIGHTS):
        load(checkpoint)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, ml_dtypes.float8_e4m3fn])
def test_quantized_weights(checkpoint: Path, dtype: Any) -> None:
    tensors = load_file(checkpoint / WEIGHTS)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].astype(dtype)}, checkpoint / WEIGHTS)
    with refused(f"{name} is stored as .*not supported", checkpoint / WEIGHTS):
        load(checkpoint)


def test_tensors_in_two_shards(checkpoint: Path) -> None:
    shard(checkpoint, 2)
    first, second = sorted(checkpoint.glob("*.safetensors"))
    tensors = {**load_file(first), **load_file(second)}
    save_file(tensors, second)
    with refused(f"is in {first.name} already", second):
        load(checkpoint)


def test_an_index_that_lies(checkpoint: Path) -> None:
    shard(checkpoint, 2)
    index = json.loads((checkpoint / INDEX).read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NORM])
    for weight_map, message in (
        ({**index, NORM: other}, f"{NORM} is in {other}, but it is not"),
        ({**index, "model.extra": other}, f"model.extra is in {other}, but it is not"),
        ({**index, NORM: "gone.safetensors"}, "lacks the shard gone"),
        ({**index, NORM: "../tiny/x.safetensors"}, "not a shard beside it"),
        ({**index, NORM: "/etc/passwd"}, "not a shard beside it"),
        ({**index, NORM: ".."}, "not a shard beside it"),
        ({**index, NORM: "a\0.safetensors"}, "lacks the shard"),
        ({**index, NORM: {"a": 1}}, "not a shard beside it"),
        ([], "no weight_map"),
    ):
        (checkpoint / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        with refused(message, checkpoint):
            load(checkpoint)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", INDEX, "generation_config.json"])
def test_links_that_lead_out(checkpoint: Path, tmp_path: Path, name: str) -> None:
    """A checkpoint unpacked from somewhere must not make the service read the host's files."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"token": 1}')
    if name == INDEX:
        shard(checkpoint, 1)
    (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / "within").symlink_to(secret)
    (checkpoint / name).symlink_to("within")
    with refused("leads out of its directory", checkpoint / name):
        load(checkpoint)


def test_pipes_and_loops(checkpoint: Path) -> None:
    file = checkpoint / "generation_config.json"
    os.mkfifo(file)
    with refused("not a regular file", file):
        load(checkpoint)
    file.unlink()
    file.symlink_to(file.name)
    with refused("not a regular file", file):
        load(checkpoint)


def test_links_that_stay_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    """As in the cache of the hub, and in volumes that switch versions by a link."""
    hub = tmp_path / "models--org--name"
    (hub / "snapshots").mkdir(parents=True)
    (hub / "blobs").mkdir()
    snapshot = hub / "snapshots" / "0123abcd"
    snapshot.mkdir()
    shared = tmp_path / "shared-blob"  # newer caches keep one blob for several models
    for file in checkpoint.iterdir():
        file.rename(hub / "blobs" / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (hub / "blobs" / WEIGHTS).rename(shared)
    (hub / "blobs" / WEIGHTS).symlink_to(shared)
    load(snapshot)

    volume = tmp_path / "volume"
    (volume / "..2026").mkdir(parents=True)
    (volume / "..data").symlink_to("..2026")
    for blob in (hub / "blobs").iterdir():
        (volume / "..2026" / blob.name).write_bytes(blob.read_bytes())
        (volume / blob.name).symlink_to(Path("..data") / blob.name)
    load(volume)


def test_pickles_are_never_opened(checkpoint: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    (checkpoint / WEIGHTS).unlink()
    for name in ("pytorch_model.bin", "consolidated.00.pth"):
        (checkpoint / name).write_bytes(pickle.dumps(Bomb()))
        with refused("pickled weights", checkpoint):
            load(checkpoint)
        (checkpoint / name).rename(checkpoint / WEIGHTS)
        with refused("cannot read", checkpoint / WEIGHTS):
            load(checkpoint)
        (checkpoint / WEIGHTS).unlink()
    assert not (tmp_path / "exploded").exists()


def test_weights_that_are_no_numbers(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / WEIGHTS)
    for value in (np.nan, np.inf):
        for dtype in (np.float32, ml_dtypes.bfloat16):
            changed = np.asarray(tensors[NORM], dtype)
            changed[1] = value
            save_file({**tensors, NORM: changed}, checkpoint / WEIGHTS)
            with refused(f"{NORM} is infinite or not a number", checkpoint):
                load(checkpoint)


def test_what_is_not_the_model_itself(checkpoint: Path, decoder: Decoder, tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for file in (checkpoint / WEIGHTS, checkpoint / "config.json", gguf):
        whole = file.read_bytes() if file.exists() else b""
        file.write_bytes(pointer)
        with refused("pointer of Git LFS", file):
            load(file if file == gguf else checkpoint)
        file.write_bytes(whole)
    write_gguf(decoder, gguf)
    swapped = bytearray(gguf.read_bytes())
    swapped[4:8] = swapped[7:3:-1]
    gguf.write_bytes(swapped)
    with refused("is big-endian", gguf):
        load(gguf)
    gguf.write_bytes(
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 11) + b"split.count" + struct.pack("<IH", 2, 2)
    )
    with refused("is a part of a model", gguf):
        load(gguf)
    change_json(checkpoint / "config.json", quantization_config={"bits": 4})
    with refused("quantization_config has no quant_method", checkpoint):
        load(checkpoint)
    (checkpoint / WEIGHTS).unlink()
    (checkpoint / "adapter_config.json").write_text("{}")
    with refused("is a LoRA adapter: --adapters takes", checkpoint):
        load(checkpoint)


def test_json_bombs(checkpoint: Path) -> None:
    config = checkpoint / "config.json"
    config.write_text("[" * 200_000)
    with refused("nested too deep|cannot read", config):
        load(checkpoint)
    os.truncate(config, 1 << 33)
    with refused("larger than any such file", config):
        load(checkpoint)


def test_gguf_tensors_outside_the_file_or_each_other(decoder: Decoder, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(decoder, path)
    whole = path.read_bytes()
    reader = GGUFReader(path)
    last = max(reader.tensors, key=lambda tensor: tensor.data_offset)
    offset = next(int(p) for p in last.field.parts[-1])
    field = last.field.offset + sum(part.nbytes for part in last.field.parts[:-1])
    assert struct.unpack_from("<Q", whole, field) == (offset,)

    path.write_bytes(whole[: len(whole) - 64])
    with refused(f"cut off within tensor {last.name}", path):
        load(path)
    for moved, message in ((0, "overlaps another"), (2**62, "cut off")):
        changed = bytearray(whole)
        struct.pack_into("<Q", changed, field, moved)
        path.write_bytes(changed)
        with refused(message, path):
            load(path)


def test_gguf_header_bombs(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    of_arrays = struct.pack("<IQ", 9, 1)
    for value in (
        struct.pack("<I", 9) + struct.pack("<IQ", 0, 2**60),  # 10^18 bytes
        struct.pack("<I", 9) + of_arrays * 5000,  # arrays of arrays of arrays
        struct.pack("<I", 8) + struct.pack("<Q", 2**63),  # a string of half of everything
    ):
        path.write_bytes(start + value)
        with refused("not a complete GGUF file", path):
            load(path)
