"""What a draft method is made of: the shape of its drafters, their files, their computations."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from flax import nnx

from blockdraft_drafter.compiled.steps import DraftSteps
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.files.tensors import DraftTensor
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.feature_projection import FeatureProjection


class DraftModel(nnx.Module):
    """The module of a drafter; embedding and head are the target's and not part of it.

    Attributes:
        config: What was built.
    """

    config: DraftConfig

    @property
    @abstractmethod
    def projection(self) -> FeatureProjection:
        """What makes a hidden state out of a feature: the first thing that happens to features."""

    def suit(self, platform: str) -> None:
        """Bring weights into the form that a platform serves fastest; their values stay.

        Args:
            platform: JAX's name of it, such as "cpu".
        """


Config = TypeVar("Config", bound=DraftConfig)
Model = TypeVar("Model", bound=DraftModel)


@dataclass(frozen=True, slots=True)
class MethodDefinition(Generic[Config, Model]):
    """Everything the rest of the drafter must know of a draft method.

    Attributes:
        name: What it is called on the wire and in specifications, such as "dflash".
        title: What it is called in prose.
        config_type: Its `DraftConfig`.
        recognizes: Tells from a parsed `config.json` whether a drafter is of this method.
        config_from_hf: Reads a parsed `config.json`, given the target's shape and the tokens per
            block if the file does not say; raises ValueError.
        config_to_hf: Returns the `config.json` of a drafter.
        default_config: Returns the shape of a drafter this project builds, given the target's, the
            tokens per block and the draft layers; raises ValueError if the target has no such.
        draft_tensors: Yields every weight, each once, in a fixed order.
        ignores: Tells whether a published tensor may be there that is no weight of the drafter.
        module: Makes a model with random weights, given `dtype` and `rngs`.
        steps: Its computations.
        reads_tokens: Whether a context row must bring its tokens beside its features.
        own_matrices: Whether a checkpoint may bring an embedding and a head of its own, to be used
            in place of the target's.
        can_learn: Whether its drafters can learn while they draft.
    """

    name: str
    title: str
    config_type: type[Config]
    recognizes: Callable[[Mapping[str, Any]], bool]
    config_from_hf: Callable[[Mapping[str, Any], DecoderConfig, int], Config]
    config_to_hf: Callable[[Config], dict[str, Any]]
    default_config: Callable[[DecoderConfig, int, int], Config]
    draft_tensors: Callable[[Config], Iterator[DraftTensor]]
    ignores: Callable[[Config, str], bool]
    module: Callable[..., Model]
    steps: type[DraftSteps]
    reads_tokens: bool = False
    own_matrices: bool = False
    can_learn: bool = False


@dataclass(frozen=True, slots=True)
class Drafter(Generic[Model]):
    """A draft model, identified.

    Attributes:
        definition: Its method.
        model: The model.
        fingerprint: 16 hexadecimal digits over the configuration and all weights.
        draft_ids: Int[ndarray, "draft"], target ids the drafter can propose; None for all.
        embedding: Float[ndarray, "vocab hidden"], its own embedding; None for the target's.
        head: Float[ndarray, "draft hidden"], its own head; None for the target's.
    """

    definition: MethodDefinition[Any, Model]
    model: Model
    fingerprint: str
    draft_ids: np.ndarray | None = None
    embedding: np.ndarray | None = None
    head: np.ndarray | None = None
