"""Checkpoints: their format, configuration and fingerprint, and reading their tensors."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from blockdraft_models.cache import default_cache_dir
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope import base_frequencies, divisors
from blockdraft_models.decoder.rope_scaling import RopeScaling
from blockdraft_models.decoder.stored import FORMATS, Format
from blockdraft_models.errors import CheckpointError
from blockdraft_models.families.family import section
from blockdraft_models.families.published_config import (
    config_from_gguf,
    config_from_hf,
    config_to_hf,
)
from blockdraft_models.families.table import is_known, tensor_names
from blockdraft_models.families.tensors import TensorName
from blockdraft_models.weights.dequantized import DequantizedWeights, check_quantization
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.fingerprint import decoder_fingerprint, remembered_fingerprint
from blockdraft_models.weights.gguf_header import GGUFHeader, read_header
from blockdraft_models.weights.gguf_weights import GGUFWeights
from blockdraft_models.weights.huggingface import Index, SafetensorsWeights

_ALL = slice(None)
_MOST_NAMED = 5
_ROPE_FACTORS = "rope_freqs.weight"
# Places of the body and of the head, in models that also take images or sound too; there the other
# parts are left out. The third is that of Gemma 4, and of what transformers 5 writes, the last of
# DiffusionGemma.
_PLACES = (
    ("model.", ""),
    ("language_model.model.", "language_model."),
    ("model.language_model.", ""),
    ("model.decoder.", "model."),
)
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_KV = re.compile(r"\.layers\.(\d+)\.self_attn\.[kv]_(?:proj|norm)\.")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ROWS = 1024  # compared at a time
_OTHER_MODELS = tuple(
    f"{place}{model}."
    for place in ("", "model.")
    for model in (
        *("vision_tower", "multi_modal_projector", "embed_vision"),
        *("audio_tower", "embed_audio", "visual", "mtp"),
        *("encoder.vision_tower", "encoder.embed_vision", "encoder.language_model"),
    )
)
# GGUF stores Llama 3's scaling only as per-frequency divisors; these are the published settings.
_PUBLISHED_SCALINGS = (
    RopeScaling(8.0, 1.0, 4.0, 8192),  # Llama 3.1
    RopeScaling(32.0, 1.0, 4.0, 8192),  # Llama 3.2
)


Weights = SafetensorsWeights | DequantizedWeights | GGUFWeights


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory or file, identified.

    The fingerprint is 16 hex digits over the values of all weights: equal for the same weights
    whatever the format, and different, for all practical purposes, otherwise.
    """

    config: DecoderConfig
    fingerprint: str
    path: Path


@dataclass(frozen=True, slots=True)
class OpenCheckpoint:
    """A checkpoint whose tensors can be read; `weights` has them by the names of its format."""

    checkpoint: Checkpoint
    weights: Weights
    place: tuple[str, str] = _PLACES[0]  # of body and head among the tensors of these files

    @property
    def is_gguf(self) -> bool:
        """Whether the checkpoint is a GGUF file; else it is a Hugging Face directory."""
        return isinstance(self.weights, GGUFWeights)

    def read(self, name: TensorName, rows: slice = _ALL) -> Any:
        """Read rows of a tensor in the decoder's layout; rows of experts' tensors are experts.

        Rows of q and k come in the order RoPE expects, and can only be read by whole heads.
        """
        if name.of_experts:
            return self._read_experts(name, rows)
        names, is_gguf = self._stored_names(name), self.is_gguf
        if name.cut is not None and not is_gguf:
            start, stop, _ = rows.indices(name.shape[0])
            return name.cut.rows(functools.partial(self.weights.read, names[0]), start, stop)
        stored = self.weights.read(names[0], rows)
        return _in_order(stored, name) if is_gguf else stored

    def read_finite(self, name: TensorName, rows: slice = _ALL) -> Any:
        """Read rows of a tensor as float32; `CheckpointError` if one is infinite or no number."""
        with np.errstate(over="ignore"):
            values = np.asarray(self.read(name, rows), np.float32)
        if not np.isfinite(values).all():
            stored = self._stored_names(name)[0]
            raise CheckpointError(f"{self.checkpoint.path}: {stored} is infinite or not a number")
        return values

    def format(self, name: TensorName) -> Format | None:
        """Return the format of a matrix that the decoder can hold as it is stored, or None."""
        if not isinstance(self.weights, GGUFWeights) or len(name.shape) != 2 or name.transposed:
            return None
        stored = self.weights.format(self._stored_names(name)[0])
        return next((format for format in FORMATS if format == stored), None)

    def read_blocks(self, name: TensorName) -> UInt8[np.ndarray, "out row_bytes"]:
        """Read a matrix that has a `format`, its rows in the order of the decoder."""
        assert isinstance(self.weights, GGUFWeights)
        stored = self.weights.read_bytes(self._stored_names(name)[0])
        blocks: np.ndarray = _in_order(stored, name)
        return blocks

    def _read_experts(self, name: TensorName, experts: slice) -> Any:
        name = self._form(name)
        names = self._stored_names(name)
        numbers = range(*experts.indices(name.shape[0]))
        read = self.weights.read

        def matrix(number: int) -> Any:
            stored = (
                read(names[number])
                if len(names) > 1
                else read(names[0], slice(number, number + 1))[0]
            )
            return name.arranged(stored, is_gguf=self.is_gguf)

        first = matrix(numbers[0])
        out = np.empty((len(numbers), *name.shape[1:]), first.dtype)
        for place, number in enumerate(numbers):
            out[place] = first if place == 0 else matrix(number)
        return out

    def part_reader(self, name: TensorName) -> Callable[[Index], Any]:
        """Return a function that reads a part of a tensor, laid out as by `read`.

        Of safetensors it reads no more than the part; of GGUF, whose rows may be quantized and out
        of order, it holds the whole tensor.
        """
        if name.of_experts:
            return lambda index: self.read(name, index[0])[(_ALL, *index[1:])]
        if isinstance(self.weights, GGUFWeights) or name.cut is not None:
            whole = self.read(name)
            return lambda index: whole[index]
        return functools.partial(self.weights.read_part, self._stored_names(name)[0])

    def in_stored_order(self, names: Iterable[TensorName]) -> list[TensorName]:
        """Sort tensors by their place in the files, so that each is read once from its start."""
        place = {name: index for index, name in enumerate(self.weights.shapes())}
        return sorted(names, key=lambda name: place[self._stored_names(name)[0]])

    def check_names(self, names: Iterable[TensorName]) -> None:
        """Check that the files hold these tensors, which unknown families may name differently."""
        expected, shapes = self.stored_shapes(names), self.weights.shapes()
        matches = {name: shapes[name] for name in expected if name in shapes}
        check_tensors(self.checkpoint.path, expected, matches)

    def stored_shapes(self, names: Iterable[TensorName]) -> dict[str, tuple[int, ...]]:
        """Return the stored tensors of a decoder's weights, and their shapes."""
        return {
            _placed(stored, self.place): shape
            for name in map(self._form, names)
            for stored, shape in name.stored(is_gguf=self.is_gguf).items()
        }

    def _form(self, name: TensorName) -> TensorName:
        """Return the form of a weight that the files have."""
        if (
            name.alternative is None
            or _placed(name.alternative.hf, self.place) not in self.weights.shapes()
        ):
            return name
        return name.alternative

    def _stored_names(self, name: TensorName) -> list[str]:
        return list(self.stored_shapes([name]))


@contextmanager
def open_checkpoint(path: Path, *, any_family: bool = False) -> Iterator[OpenCheckpoint]:
    """Open a Hugging Face directory or a `.gguf` file that holds exactly a decoder's tensors.

    With `any_family`, a directory may be of a family that `families` lacks. Then only its sizes are
    known, and its tensors are those in the files.
    """
    if path.is_dir():
        if (path / "adapter_config.json").exists() and not any(path.glob("model*.safetensors")):
            raise CheckpointError(
                f"{path} is a LoRA adapter: --adapters takes its parent folder, --target a model"
            )
        published = read_json(path / "config.json", required=True)
        published.setdefault("_name_or_path", path.name)
        generation = read_json(path / "generation_config.json")
        with _refusals(path):
            config = config_from_hf(published, generation, any_family=any_family)
            quantization = section(published, "quantization_config")
            if quantization:
                check_quantization(quantization)
        with SafetensorsWeights(path) as shards:
            yield _identify(path, config, DequantizedWeights(shards) if quantization else shards)
    elif path.suffix == ".gguf":
        header = read_header(path)
        with _refusals(path):
            config = config_from_gguf(header.metadata, header.tensors)
        gguf = GGUFWeights(header)
        if _ROPE_FACTORS in header.tensors:
            if config.rope_scaling is not None:
                raise CheckpointError(f"{path} stretches its rotary frequencies twice")
            config = replace(config, rope_scaling=_gguf_rope_scaling(config, header, gguf))
        yield _identify(path, config, gguf)
    else:
        raise CheckpointError(f"{path} is neither a directory nor a .gguf file")


def export_huggingface(source: Path, directory: Path) -> Checkpoint:
    """Write a checkpoint for programs that read nothing else than Hugging Face directories.

    It gets configuration and float32 weights, dequantized if need be, all in memory meanwhile; no
    tokenizer. The fingerprint is that of the source.
    """
    # Imported here: reading a GGUF file does not need it.
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    with open_checkpoint(source) as opened:
        config = opened.checkpoint.config
        tensors = {
            name.hf: np.asarray(opened.read(name), np.float32, order="C")
            for name in tensor_names(config)
        }
    # transformers refuses files without this metadata.
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config_to_hf(config)), encoding="utf-8")
    return Checkpoint(config, opened.checkpoint.fingerprint, directory)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _identify(path: Path, config: DecoderConfig, weights: Weights) -> OpenCheckpoint:
    shapes = weights.shapes()
    place = next((place for place in _PLACES if _placed(_EMBEDDING, place) in shapes), _PLACES[0])
    head, table = _placed(_HEAD, place), _placed(_EMBEDDING, place)
    if config.tie_word_embeddings and head in shapes:
        # Exports repeat the embedding; if the head is another, transformers ignores the flag.
        config = replace(config, tie_word_embeddings=_are_equal(weights, head, table))
    if is_known(config.family):
        names, description = list(tensor_names(config)), config.canonical_json()
    else:
        names = [TensorName(name, name, name, shape) for name, shape in sorted(shapes.items())]
        description = f"{config.family} {config.canonical_json()}"
        # A `config.json` leaves out what is its family's default.
        config = replace(config, tie_word_embeddings=_HEAD not in shapes)
    unnamed = OpenCheckpoint(Checkpoint(config, "", path), weights, place)
    expected = unnamed.stored_shapes(names)
    decoder_shapes = {
        name: shape
        for name, shape in shapes.items()
        if name in expected
        or not (
            (config.tie_word_embeddings and name == head)
            or _ignorable(name, config)
            or name.startswith(_OTHER_MODELS)
        )
    }
    check_tensors(path, expected, decoder_shapes)
    if not isinstance(weights, GGUFWeights):
        weights.check_floats(expected)
    fingerprint = remembered_fingerprint(
        weights.files(),
        description,
        lambda: decoder_fingerprint(
            description, names, unnamed.in_stored_order(names), unnamed.read_finite
        ),
        default_cache_dir() / "fingerprints",
    )
    return OpenCheckpoint(Checkpoint(config, fingerprint, path), weights, place)


def _placed(name: str, place: tuple[str, str]) -> str:
    """Return the name in files with such places of a tensor of a model of text alone."""
    body, head = place
    return body + name.removeprefix("model.") if name.startswith("model.") else head + name


def _are_equal(weights: Weights, head: str, table: str) -> bool:
    """Return whether the stored head equals the embedding."""
    shape = weights.shapes()[head]

    def equal(start: int) -> bool:
        rows = slice(start, min(start + _ROWS, shape[0]))
        return np.array_equal(weights.read(head, rows), weights.read(table, rows))

    return shape == weights.shapes()[table] and all(map(equal, range(0, shape[0], _ROWS)))


def check_tensors(
    path: Path, expected: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that files hold tensors of these shapes by name, and no others."""
    misshapen = [
        f"{name} is {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    problems = [
        f"{problem}: {_some(names)}"
        for problem, names in (
            ("missing", sorted(expected.keys() - shapes.keys())),
            ("unexpected", sorted(shapes.keys() - expected.keys())),
            ("shape", misshapen),
        )
        if names
    ]
    if problems:
        raise CheckpointError(f"tensors of {path} do not fit its config: {'; '.join(problems)}")


def _ignorable(name: str, config: DecoderConfig) -> bool:
    # Some exports store the rotary frequencies that config implies; Gemma 4's have keys and values
    # that no layer uses, those of DeepSeek's routing further layers that draft.
    kv = _KV.search(name)
    unused = kv is not None and config.kv_layers <= int(kv[1]) < config.num_layers
    layer = _LAYER.search(name)
    if config.sigmoid_routing and layer is not None and int(layer[1]) >= config.num_layers:
        return True
    return unused or name == _ROPE_FACTORS or name.endswith(".rotary_emb.inv_freq")


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


def _in_order(rows: Any, name: TensorName) -> Any:
    """Undo `LlamaModel.permute` of llama.cpp's `convert_hf_to_gguf.py`, of whole heads."""
    if not name.permuted_heads:
        return rows
    half = name.shape[0] // name.permuted_heads // 2
    heads = rows.shape[0] // half // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _gguf_rope_scaling(config: DecoderConfig, header: GGUFHeader, weights: Weights) -> RopeScaling:
    stored = weights.read(_ROPE_FACTORS)
    frequencies = base_frequencies(config.head_dim, config.rope_theta)
    for scaling in _PUBLISHED_SCALINGS:
        expected = divisors(scaling, frequencies, config.rope_theta)
        if stored.shape == expected.shape and np.allclose(stored, expected, rtol=1e-4):
            return scaling
    raise CheckpointError(f"{header.path}: {_ROPE_FACTORS} is not a published Llama 3 scaling")
