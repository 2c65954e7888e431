"""The parts of a draft method: the shape of its drafters, their files, their programs."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import DTypeLike

from blockdraft_drafter.compiled.programs import Capacity, DraftPrograms, DraftWeights, whole
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.sharding import (
    MODEL_AXIS,
    Place,
    Placement,
    in_order,
    state_shapes,
)
from blockdraft_models.families.published_config import rope_scaling_to_hf
from blockdraft_models.weights.loading import EmbeddingAndHead

DEFAULT_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 256
"""Tokens per block; published drafters have up to 16."""

DRAFT_TO_TARGET = "d2t"
"""The tensor of a draft vocabulary: draft token i is target token i + d2t[i]."""
TARGET_TO_DRAFT = "t2d"
"""A mask of the target's vocabulary that some checkpoints carry for training."""


@dataclass(frozen=True, slots=True)
class DraftTensor:
    """One weight of a drafter: dotted path in the module, published name, shape ([out, in])."""

    path: str
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """The shape of a drafter of any method, and its published form."""

    decoder: DecoderConfig  # the draft layers; `hidden_size` and `vocab_size` are the target's
    block_size: int  # tokens per block, the anchor included
    target_layer_ids: tuple[int, ...]  # target layers whose outputs, concatenated, are a feature
    num_target_layers: int  # decoder layers of the target
    # Tokens the drafter can draft, the target's frequent ones: of a small target the output head
    # is most of a draft's cost. None for all.
    draft_vocab_size: int | None = None
    # The target the drafter was trained for, or None if not recorded.
    target_fingerprint: str | None = None
    trained: bool = True

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        if self.block_size < 2:
            raise ValueError(f"block_size must be at least 2, got {self.block_size}")
        if self.block_size > MAX_BLOCK_SIZE:
            raise ValueError(f"block_size must be at most {MAX_BLOCK_SIZE}, got {self.block_size}")
        vocab_size = self.decoder.vocab_size
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= vocab_size:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size} is not in [1, {vocab_size}]"
            )
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids must not be empty")
        for layer_id in self.target_layer_ids:
            if not 0 <= layer_id < self.num_target_layers:
                raise ValueError(f"target layer {layer_id} is not in [0, {self.num_target_layers})")

    @property
    def feature_width(self) -> int:
        """Elements of one feature."""
        return len(self.target_layer_ids) * self.decoder.hidden_size

    @classmethod
    @abstractmethod
    def default_for(
        cls, target: DecoderConfig, *, block_size: int, num_layers: int
    ) -> "DraftConfig":
        """Return the drafter this project builds for a target; ValueError if there is none."""

    @staticmethod
    @abstractmethod
    def recognizes(config: Mapping[str, Any]) -> bool:
        """Tell from `config.json` if a drafter is of this method; ValueError if it is malformed."""

    @classmethod
    @abstractmethod
    def from_hf(
        cls, config: Mapping[str, Any], target: DecoderConfig, *, block_size: int
    ) -> "DraftConfig":
        """Read a published drafter's parsed `config.json`; `block_size` is for one without.

        Raises ValueError if a field is missing or its value is not supported.
        """

    @abstractmethod
    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` of the drafter in the published format."""

    @abstractmethod
    def tensors(self) -> Iterator[DraftTensor]:
        """Yield every weight of the draft model, each once, in a fixed order."""

    @abstractmethod
    def ignores(self, name: str) -> bool:
        """Return whether a published tensor may be there without being a weight of the drafter."""

    def common_to_hf(self) -> dict[str, Any]:
        """Return the fields of `config.json` that all methods publish alike.

        The fields of the layers are named as in transformers; our own additions live under the
        extra key `blockdraft`.
        """
        decoder = self.decoder
        ours: dict[str, Any] = {"trained": self.trained}
        if self.target_fingerprint is not None:
            ours["target_fingerprint"] = self.target_fingerprint
        return {
            "attention_bias": decoder.attention_bias,
            "blockdraft": ours,
            "head_dim": decoder.head_dim,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden_size,
            "intermediate_size": decoder.intermediate_size,
            "max_position_embeddings": decoder.max_position_embeddings,
            "num_attention_heads": decoder.num_heads,
            "num_hidden_layers": decoder.num_layers,
            "num_key_value_heads": decoder.num_kv_heads,
            "rms_norm_eps": decoder.rms_norm_eps,
            "rope_scaling": rope_scaling_to_hf(decoder),
            "rope_theta": decoder.rope_theta,
            "vocab_size": decoder.vocab_size,
        }


class DraftModel(nnx.Module):
    """The module of a drafter; embedding and head are the target's and not part of it."""

    config: DraftConfig

    @abstractmethod
    def __init__(self, config: Any, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        """Initialize random weights; randomness is that of the stream `params`."""

    @property
    @abstractmethod
    def projection(self) -> FeatureProjection:
        """The map of a feature to a hidden state, the first step of the drafter."""

    def suit(self, platform: str) -> None:
        """Bring weights into the form that a platform, such as "cpu", serves fastest."""


Model = TypeVar("Model", bound=DraftModel)


@dataclass(frozen=True, slots=True)
class MethodDefinition(Generic[Model]):
    """A draft method: everything that does not follow from the shape of one of its drafters."""

    name: str  # its name on the wire and in specifications, such as "dflash"
    title: str  # its name in prose
    config_type: type[DraftConfig]
    module: type[Model]
    programs: type[DraftPrograms]
    reads_tokens: bool = False  # whether a row must bring its tokens beside its features
    # Whether programs always take a head beside the embedding, as most of its drafters have one;
    # it may be the target's embedding.
    separate_head: bool = False

    def programs_of(
        self,
        model: Model,
        matrices: EmbeddingAndHead,
        draft_ids: Any,
        capacity: Capacity,
        *,
        cache_dtype: DTypeLike,
        placement: Placement | None,
    ) -> DraftPrograms:
        """Return the programs of a drafter on a mesh or on the default device.

        All arrays may be mere shapes; `matrices` are the embedding and the head over the draft
        vocabulary.
        """
        config, decoder = model.config, model.config.decoder
        graph, state = nnx.split(model)
        weights = DraftWeights(
            state_shapes(state, decoder, placement),
            jax.tree.map(partial(_by_vocabulary, placement=placement), matrices),
            jax.tree.map(lambda ids: whole(ids.shape, ids.dtype, placement), draft_ids),
        )
        return self.programs(
            graph,
            decoder,
            config.block_size,
            config.feature_width,
            capacity,
            cache_dtype,
            weights,
            placement,
        )

    def abstract_programs(
        self,
        config: DraftConfig,
        target: DecoderConfig,
        capacity: Capacity,
        *,
        dtype: DTypeLike,
        placement: Placement | None,
    ) -> DraftPrograms:
        """Return the programs of a drafter without weights, from shapes only.

        It uses the target's embedding and head; `dtype` is the type of weights, activations and
        draft KV cache. The devices of `placement` may be those of a topology.
        """
        model = nnx.eval_shape(lambda: self.module(config, dtype=dtype, rngs=nnx.Rngs(0)))
        size, vocab, hidden = config.draft_vocab_size, target.vocab_size, target.hidden_size
        embedding: Any = jax.ShapeDtypeStruct((vocab, hidden), dtype)
        head: Any = jax.ShapeDtypeStruct((size or vocab, hidden), dtype)
        if target.tie_word_embeddings and not self.separate_head and size is None:
            head = None
        matrices = EmbeddingAndHead(embedding, head)
        draft_ids = None if size is None else jax.ShapeDtypeStruct((size,), jnp.int32)
        return self.programs_of(
            model, matrices, draft_ids, capacity, cache_dtype=dtype, placement=placement
        )


def _by_vocabulary(matrix: Any, placement: Placement | None) -> jax.ShapeDtypeStruct:
    """Return the shape of an embedding, a head or its scales, divided by their own vocabulary."""
    place: Place | None = None
    if placement is not None:
        # A draft vocabulary is not the one that `placement` would divide.
        divided = matrix.shape[0] % placement.mesh.shape[MODEL_AXIS] == 0
        axis = MODEL_AXIS if divided else None
        spec = PartitionSpec(axis, *[None] * (len(matrix.shape) - 1))
        place = in_order(NamedSharding(placement.mesh, spec), matrix.shape)
    return jax.ShapeDtypeStruct(matrix.shape, matrix.dtype, sharding=place)


@dataclass(frozen=True, slots=True)
class Drafter(Generic[Model]):
    """A draft model, identified."""

    definition: MethodDefinition[Model]
    model: Model
    fingerprint: str  # 16 hexadecimal digits over the configuration and all weights
    # Int[ndarray, "draft"], target ids the drafter can draft; None for all.
    draft_ids: np.ndarray | None = None
    # Float[ndarray, "vocab hidden"], its own embedding; None for the target's.
    embedding: np.ndarray | None = None
    # Float[ndarray, "draft hidden"], its own head; None for the target's.
    head: np.ndarray | None = None
