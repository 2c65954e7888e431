"""GGUF files in other types: the same numbers as far as the type holds them, the same metadata."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from tests.bench.support import tiny_decoder
from tests.models.builders import write_gguf

from blockdraft_bench.peers.decoders import quantization, rewrite_gguf
from blockdraft_models.weights.gguf_header import read_header


@pytest.mark.parametrize(("kind", "tolerance"), [("BF16", 2**-8), ("Q8_0", 2**-7)])
def test_rewrite(tmp_path: Path, kind: str, tolerance: float) -> None:
    source, destination = tmp_path / "tiny.gguf", tmp_path / "other.gguf"
    write_gguf(tiny_decoder(), source)
    rewrite_gguf(source, destination, kind)
    assert quantization(destination) == kind
    before, after = read_header(source).metadata, dict(read_header(destination).metadata)
    after.pop("general.file_type")
    assert after == {k: v for k, v in before.items() if k != "general.file_type"}
    old, new = GGUFReader(source).tensors, GGUFReader(destination).tensors
    assert [t.name for t in new] == [t.name for t in old]
    for one, two in zip(old, new, strict=True):
        matrix = len(one.shape) > 1
        assert two.tensor_type.name == (kind if matrix else "F32")
        values = dequantize(two.data, two.tensor_type)
        np.testing.assert_allclose(values, one.data, atol=tolerance * np.abs(one.data).max())


def test_a_file_that_does_not_say_its_type(tmp_path: Path) -> None:
    write_gguf(tiny_decoder(), tmp_path / "tiny.gguf")
    assert quantization(tmp_path / "tiny.gguf") == "GGUF"
