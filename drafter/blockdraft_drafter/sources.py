"""Where a drafter comes from: a directory, the hub, this package, or a random number generator."""

import logging
from dataclasses import replace
from pathlib import Path

from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter.checkpoint import Drafter, fingerprint, load_drafter, published_arrays
from blockdraft_drafter.config import DFlashConfig
from blockdraft_drafter.dflash import DFlash
from blockdraft_models.errors import ResolveError
from blockdraft_models.huggingface import read_json
from blockdraft_models.loading import Checkpoint
from blockdraft_models.resolve import resolve_target

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "checkpoints"


def obtain_drafter(
    spec: str, target: Checkpoint, *, block_size: int, num_layers: int, dtype: DTypeLike
) -> Drafter:
    """Return the drafter that `spec` names.

    Args:
        spec: A directory, a hub id `org/name`, `random[:seed]` or `auto`.
        target: The target it shall draft for.
        block_size: Tokens per block, if it is to be random.
        num_layers: Draft layers, if it is to be random.
        dtype: Of weights and activations.

    Raises:
        CheckpointError: If the checkpoint is damaged or does not fit the target.
        ResolveError: If the specification leads to nothing.
    """
    kind, _, seed = spec.partition(":")
    if kind == "auto":
        shipped = shipped_for(target)
        if shipped is not None:
            return load_drafter(shipped, target, dtype=dtype)
        logger.warning("no drafter is shipped for this target; a random one accepts nothing")
        kind, seed = "random", ""
    if kind == "random":
        config = DFlashConfig.default_for(
            target.config, block_size=block_size, num_layers=num_layers
        )
        return random_drafter(config, target, seed=_seed(spec, seed), dtype=dtype)
    return load_drafter(resolve_target(spec), target, dtype=dtype)


def shipped_for(target: Checkpoint, directory: Path = SHIPPED) -> Path | None:
    """Return the checkpoint in `directory` that was trained for a target, or None."""
    for path in sorted(directory.glob("*/config.json")):
        ours = read_json(path).get("blockdraft", {})
        if ours.get("target_fingerprint") == target.fingerprint:
            return path.parent
    return None


def random_drafter(
    config: DFlashConfig, target: Checkpoint, *, seed: int, dtype: DTypeLike
) -> Drafter:
    """Return an untrained drafter; the same seed gives the same weights."""
    config = replace(config, target_fingerprint=target.fingerprint, trained=False)
    model = DFlash(config, dtype=dtype, rngs=nnx.Rngs(seed))
    return Drafter(model, fingerprint(config, published_arrays(model)))


def _seed(spec: str, seed: str) -> int:
    if not seed:
        return 0
    if not seed.isdecimal():
        raise ResolveError(f"drafter {spec!r}: the seed must be a whole number")
    return int(seed)
