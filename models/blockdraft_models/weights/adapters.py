"""LoRA adapters in the files that PEFT writes, put beside the weights that they change."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32

from blockdraft_models.decoder.linear import Linear, LowRank, parameter
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sharding import Axes, Placement
from blockdraft_models.errors import CheckpointError
from blockdraft_models.families.table import tensor_names
from blockdraft_models.families.tensors import TensorName
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.huggingface import SafetensorsWeights
from blockdraft_models.weights.loading import send

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# A matrix of a linear map, in a model of text alone or in the text part of another.
_MATRIX = re.compile(
    r"base_model\.model\.(?:language_model\.)?model\.(?:language_model\.)?"
    r"(layers\.\d+\..+)\.lora_([AB])\.weight"
)
_MODULE = re.compile(r"[\w.]+")
# Options of PEFT that change how the matrices are applied, with the value that does not.
_PLAIN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
    "layer_replication": None,
    "arrow_config": None,
    "kasa_config": None,
    "use_bdlora": None,
}


class _Matrices(NamedTuple):
    """The matrices of one linear map as they are stored; the scale is part of `up`."""

    down: Float32[np.ndarray, "rank in"]
    up: Float32[np.ndarray, "out rank"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter; `matrices` are by the name of the linear map, such as layers.0.self_attn.q_proj.

    The fingerprint is 16 hex digits over all values.
    """

    name: str
    matrices: Mapping[str, _Matrices]
    fingerprint: str

    @property
    def rank(self) -> int:
        """The greatest rank of its matrices."""
        return max(len(matrices.down) for matrices in self.matrices.values())


def load_adapters(
    decoder: Decoder, folder: Path, placement: Placement | None = None
) -> tuple[Adapter, ...]:
    """Put the adapters of a folder, one in each subfolder, beside the weights of a loaded decoder.

    They are in the order of their names, and computed in the decoder's element type. A decoder that
    is to be scanned is not yet. Raises `CheckpointError` if one cannot be applied to this decoder.
    """
    paths = sorted(path.parent for path in folder.glob(f"*/{_CONFIG}"))
    if not paths:
        raise CheckpointError(f"{folder} has no subfolder with an {_CONFIG}")
    adapters = tuple(map(read_adapter, paths))
    names = _linear_names(decoder)
    for path, adapter in zip(paths, adapters, strict=True):
        _check(path, adapter, names)
    places = {
        name.path.split(".", 2)[2]
        for adapter in adapters
        for stored in adapter.matrices
        for name in names[stored]
    }
    decoder.adapter_ranks = tuple(adapter.rank for adapter in adapters)
    linears = dict(_linears(decoder))
    for stored, parts in names.items():
        for name in parts:
            if name.path.split(".", 2)[2] in places:
                linear = linears[name.path.removesuffix(".weight")]
                linear.adapters = _low_rank(decoder, linear, name, stored, adapters, placement)
    if placement is not None:
        decoder.divide(placement.mesh)
    return adapters


def read_adapter(path: Path) -> Adapter:
    """Read the adapter in a folder; `CheckpointError` if it is none, or of an unknown kind."""
    config = read_json(path / _CONFIG, required=True)
    for option, plain in _PLAIN.items():
        if (value := config.get(option, plain)) and value != plain:
            raise CheckpointError(f"{path}: {option} {value!r} is not supported")
    parts: dict[str, dict[str, Any]] = {}
    digest = hashlib.sha256()
    with SafetensorsWeights(path, _WEIGHTS) as weights:
        weights.check_floats(weights.shapes())
        for tensor in sorted(weights.shapes()):
            matrix = _MATRIX.fullmatch(tensor)
            if matrix is None:
                raise CheckpointError(f"{path}: {tensor} is no matrix of a layer's adapter")
            values = np.asarray(weights.read(tensor), np.float32)
            if values.ndim != 2:
                raise CheckpointError(f"{path}: {tensor} has {values.ndim} axes, not 2")
            parts.setdefault(matrix[1], {})[matrix[2]] = values
            digest.update(f"{tensor} {values.shape}".encode() + values.tobytes())
    matrices = {}
    for module, pair in parts.items():
        down, up = pair.get("A"), pair.get("B")
        if down is None or up is None or not len(down) or len(down) != up.shape[1]:
            raise CheckpointError(f"{path}: {module} has no two matrices of one rank")
        scale = _scale(path, config, module, len(down))
        with np.errstate(over="ignore", invalid="ignore"):
            matrices[module] = _Matrices(down, up * np.float32(scale))
        if not all(np.isfinite(matrix).all() for matrix in matrices[module]):
            raise CheckpointError(f"{path}: {module} is infinite or not a number")
        digest.update(f"{module} {scale}".encode())
    if not matrices:
        raise CheckpointError(f"{path} has no matrices")
    return Adapter(path.name, matrices, digest.hexdigest()[:16])


def _scale(path: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return the factor of a module's matrices; `alpha_pattern` names ends of modules."""
    alpha = config.get("lora_alpha")
    for end, special in (config.get("alpha_pattern") or {}).items():
        if not _MODULE.fullmatch(end):
            raise CheckpointError(f"{path}: alpha_pattern {end!r} is no name of a module")
        if f".{module}".endswith(f".{end.removeprefix('model.')}"):
            alpha = special
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise CheckpointError(f"{path}: lora_alpha must be a number, got {alpha!r}")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _linears(decoder: Decoder) -> Iterator[tuple[str, Linear]]:
    for path, module in nnx.iter_modules(decoder):
        if isinstance(module, Linear):
            yield ".".join(map(str, path)), module


def _linear_names(decoder: Decoder) -> dict[str, list[TensorName]]:
    """Return the linear maps of layers by the names of their weights in Hugging Face files.

    One stored matrix may hold those of several.
    """
    places = dict(_linears(decoder))
    names: dict[str, list[TensorName]] = {}
    for name in tensor_names(decoder.config):
        if name.path.startswith("layers.") and name.path.removesuffix(".weight") in places:
            for form in (name, name.alternative):
                if form is not None:
                    stored = form.hf.removeprefix("model.").removesuffix(".weight")
                    names.setdefault(stored, []).append(form)
    return names


def _check(path: Path, adapter: Adapter, names: Mapping[str, Sequence[TensorName]]) -> None:
    """Refuse an adapter that changes something else, or of other shapes."""
    for stored, (down, up) in adapter.matrices.items():
        if stored not in names:
            raise CheckpointError(f"{path}: {stored} is no linear map that adapters can change")
        name = names[stored][0]
        out = name.shape[0] if name.cut is None else name.cut.size
        if (len(up), down.shape[1]) != (out, name.shape[1]):
            shape = len(up), down.shape[1]
            raise CheckpointError(
                f"{path}: {stored} is for a matrix of {shape}, not {(out, name.shape[1])}"
            )


def _low_rank(
    decoder: Decoder,
    linear: Linear,
    name: TensorName,
    stored: str,
    adapters: Sequence[Adapter],
    placement: Placement | None,
) -> LowRank:
    """Return the adapters of a linear map side by side; one that does not change it adds zero."""
    (out_width, in_width), ranks = name.shape, sum(decoder.adapter_ranks)
    down, up = np.zeros((ranks, in_width), np.float32), np.zeros((out_width, ranks), np.float32)
    first = 0
    for adapter in adapters:
        if matrices := adapter.matrices.get(stored):
            columns, rows = slice(first, first + len(matrices.down)), matrices.up
            down[columns] = matrices.down
            cut = name.cut
            up[:, columns] = rows if cut is None else cut.rows(rows.__getitem__, 0, out_width)
        first += adapter.rank
    axes = linear.weight.get_metadata()["out_sharding"]
    low_rank = LowRank(in_width, out_width, ranks, axes, decoder.dtype)
    for part, values in ((low_rank.down, down), (low_rank.up, up)):
        part_axes = part.weight.get_metadata()["out_sharding"]
        part.weight = parameter(_placed(values, part_axes, decoder, placement), part_axes)
    return low_rank


def _placed(
    values: Float32[np.ndarray, "out in"],
    axes: Axes,
    decoder: Decoder,
    placement: Placement | None,
) -> Float[Array, "out in"]:
    rounded = values.astype(decoder.dtype)
    place = None if placement is None else placement.place(axes, values.shape, decoder.config)
    return send(
        lambda index: np.ascontiguousarray(rounded[index]), values.shape, rounded.dtype, place
    )
