"""Where a drafter comes from: a directory, the hub, this package, or a random number generator."""

import logging
from dataclasses import replace
from pathlib import Path

from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter.config.dflash import DFlashConfig
from blockdraft_drafter.config.eagle3 import Eagle3Config, is_eagle3
from blockdraft_drafter.dflash.checkpoint import (
    Drafter,
    fingerprint,
    load_drafter,
    published_arrays,
)
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.eagle3.checkpoint import Eagle3Drafter, load_eagle3
from blockdraft_drafter.eagle3.checkpoint import fingerprint as eagle3_fingerprint
from blockdraft_drafter.eagle3.checkpoint import published_arrays as eagle3_arrays
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_models.errors import CheckpointError, ResolveError
from blockdraft_models.weights.huggingface import read_json
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_models.weights.resolve import resolve_target

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[1] / "checkpoints"


def obtain_drafter(
    spec: str, target: Checkpoint, *, block_size: int, num_layers: int, dtype: DTypeLike
) -> Drafter | Eagle3Drafter:
    """Return the drafter that `spec` names.

    Args:
        spec: A directory, a hub id `org/name`, `auto` or `eagle3` (those shipped for the target),
            `random[:seed]` or `random-eagle3[:seed]`.
        target: The target it shall draft for.
        block_size: Tokens per block, if it is to be random or does not say.
        num_layers: Draft layers, if it is to be random.
        dtype: Of weights and activations.

    Raises:
        CheckpointError: If the checkpoint is damaged or does not fit the target.
        ResolveError: If the specification leads to nothing.
    """
    kind, _, seed = spec.partition(":")
    if kind == "random-eagle3":
        try:
            shape = Eagle3Config.default_for(target.config, block_size=block_size)
        except ValueError as error:
            raise ResolveError(f"drafter {spec!r}: {error}") from error
        return random_eagle3(shape, target, seed=_seed(spec, seed), dtype=dtype)
    if kind in ("auto", "eagle3"):
        shipped = shipped_for(target, eagle3=kind == "eagle3")
        if shipped is not None:
            return load_any(shipped, target, block_size=block_size, dtype=dtype)
        if kind == "eagle3":
            raise ResolveError(f"no EAGLE-3 drafter is shipped for target {target.fingerprint}")
        logger.warning("no drafter is shipped for this target; a random one accepts nothing")
        kind, seed = "random", ""
    if kind == "random":
        config = DFlashConfig.default_for(
            target.config, block_size=block_size, num_layers=num_layers
        )
        return random_drafter(config, target, seed=_seed(spec, seed), dtype=dtype)
    return load_any(resolve_target(spec), target, block_size=block_size, dtype=dtype)


def load_any(
    path: Path, target: Checkpoint, *, block_size: int, dtype: DTypeLike
) -> Drafter | Eagle3Drafter:
    """Load a drafter of whichever kind its configuration says; see `obtain_drafter`."""
    published = read_json(path / "config.json", required=True)
    try:
        eagle3 = is_eagle3(published)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if eagle3:
        return load_eagle3(path, target, block_size=block_size, dtype=dtype)
    return load_drafter(path, target, dtype=dtype)


def shipped_for(target: Checkpoint, directory: Path = SHIPPED, *, eagle3: bool) -> Path | None:
    """Return the checkpoint in `directory` of a kind that was trained for a target, or None."""
    for path in sorted(directory.glob("*/config.json")):
        config = read_json(path)
        fingerprint = config.get("blockdraft", {}).get("target_fingerprint")
        if fingerprint == target.fingerprint and is_eagle3(config) == eagle3:
            return path.parent
    return None


def random_eagle3(
    config: Eagle3Config, target: Checkpoint, *, seed: int, dtype: DTypeLike
) -> Eagle3Drafter:
    """Return an untrained EAGLE-3 drafter; the same seed gives the same weights."""
    config = replace(config, target_fingerprint=target.fingerprint, trained=False)
    model = Eagle3(config, dtype=dtype, rngs=nnx.Rngs(seed))
    return Eagle3Drafter(model, eagle3_fingerprint(config, eagle3_arrays(model)))


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
