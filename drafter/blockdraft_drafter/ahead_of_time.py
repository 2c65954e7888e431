"""The programs of drafters that are not there, to be compiled for devices that are not there."""

from jaxtyping import DTypeLike

from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_drafter.compiled.steps import Room
from blockdraft_drafter.config.dflash import DFlashConfig
from blockdraft_drafter.config.eagle3 import Eagle3Config
from blockdraft_drafter.dflash.method import dflash_programs
from blockdraft_drafter.eagle3.method import eagle3_programs
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import Placement


def draft_programs(
    config: DFlashConfig | Eagle3Config,
    target: DecoderConfig,
    room: Room,
    *,
    dtype: DTypeLike,
    placement: Placement | None,
) -> DraftPrograms:
    """Return what `make_method` would compile, from shapes only.

    Args:
        config: The drafter's shape.
        target: The shape of the target, whose embedding and head it uses.
        room: For contexts.
        dtype: Element type of weights, activations and contexts.
        placement: On a mesh, whose devices may be those of a topology; None for the default device.
    """
    if isinstance(config, Eagle3Config):
        return eagle3_programs(config, room, dtype=dtype, placement=placement)
    return dflash_programs(config, target, room, dtype=dtype, placement=placement)
