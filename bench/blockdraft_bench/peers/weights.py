"""GGUF files for llama.cpp: the target's weights in the types that its users choose between."""

from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from blockdraft_models.weights.gguf_header import read_header

_ARCHITECTURE, _FILE_TYPE = "general.architecture", "general.file_type"


def quantization(path: Path) -> str:
    """Return how a GGUF file says its weights are stored, such as "Q4_1"."""
    kind = read_header(path).metadata.get(_FILE_TYPE, -1)
    try:
        return LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "GGUF"


def rewrite_gguf(source: Path, destination: Path, kind: str) -> None:
    """Write a GGUF file anew with all its matrices in another type, and all else as it was.

    `kind` is "BF16" or "Q8_0". All weights are held in memory meanwhile.
    """
    reader = GGUFReader(source)
    fields = dict(reader.fields)
    writer = GGUFWriter(destination, fields.pop(_ARCHITECTURE).contents())
    fields.pop(_FILE_TYPE, None)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind}"])
    for name, field in fields.items():
        if not name.startswith("GGUF."):  # those count what is in the file
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    matrices = GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) > 1
        values = dequantize(tensor.data, tensor.tensor_type) if is_matrix else tensor.data
        writer.add_tensor(
            tensor.name,
            quantize(values, matrices) if is_matrix else values,
            raw_dtype=matrices if is_matrix else tensor.tensor_type,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
