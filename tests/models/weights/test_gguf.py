"""The lean GGUF reader against the official writer, and against damage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from tests.models.builders import close_gguf

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights import gguf_weights
from blockdraft_models.weights.gguf_header import read_header
from blockdraft_models.weights.gguf_weights import GGUFWeights

VALUES = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)


def write(
    path: Path, kinds: list[GGMLQuantizationType], values: Float[np.ndarray, "..."] = VALUES
) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_array("strings", ["a", "é", "猫"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_float32("float", 0.5)
    writer.add_bool("bool", True)
    writer.add_uint64("big", 1 << 40)
    for kind in kinds:
        writer.add_tensor(kind.name, quantize(values, kind), raw_dtype=kind)
    close_gguf(writer)


def test_metadata_reads_back(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", [GGMLQuantizationType.F32])
    metadata = read_header(tmp_path / "a.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["strings"] == ["a", "é", "猫"]
    assert metadata["ints"] == [1, -2, 3]
    assert (metadata["float"], metadata["bool"], metadata["big"]) == (0.5, True, 1 << 40)


@pytest.mark.parametrize("slice_elements", [1, 128, 2**17])
@pytest.mark.parametrize("shape", [(6, 64), (3, 2, 64), (2, 3, 64)])
def test_every_common_quantization_reads_back(
    shape: tuple[int, ...], slice_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_weights, "_SLICE_ELEMENTS", slice_elements)
    kinds = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")]
    values = VALUES.reshape(shape)
    write(tmp_path / "a.gguf", kinds, values)
    weights = GGUFWeights(read_header(tmp_path / "a.gguf"))
    assert weights.shapes() == {kind.name: shape for kind in kinds}
    for kind in kinds:
        expected = dequantize(quantize(values, kind), kind)
        np.testing.assert_array_equal(weights.read(kind.name), expected)
        np.testing.assert_array_equal(weights.read(kind.name, slice(1, 3)), expected[1:3])


@settings(max_examples=60)
@given(data=st.data())
def test_truncated_files_are_refused(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("gguf")
    write(directory / "whole.gguf", [GGMLQuantizationType.F32])
    whole = (directory / "whole.gguf").read_bytes()
    cut = directory / "cut.gguf"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError):
        GGUFWeights(read_header(cut)).read("F32")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a complete GGUF file"),
        (b"PK\x03\x04" * 8, "is not a GGUF file"),
        (b"GGUF" + b"\x01" + b"\x00" * 40, "version 1"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 8 + b"\xff" * 16, "not a complete GGUF file"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "a.gguf")


def test_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(tmp_path / "a.gguf")
