"""Where a drafter comes from: a directory, the hub, this package, or a random number generator."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter.catalogue import DEFAULT, FASTEST_FIRST, METHODS, published_method
from blockdraft_drafter.compiled.definition import Config, Drafter, MethodDefinition, Model
from blockdraft_drafter.files.checkpoint import fingerprint, load_drafter, published_arrays
from blockdraft_drafter.files.known_drafters import known_drafter
from blockdraft_models.errors import CheckpointError, ResolveError
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_models.weights.resolve import resolve_target

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[1] / "checkpoints"
# Methods by the specification of their shipped and of their random drafters.
_BY_NAME = {method.name: method for method in METHODS}
_RANDOM = {"random": DEFAULT} | {
    f"random-{name}": method for name, method in _BY_NAME.items() if method is not DEFAULT
}


class NoDrafterError(ResolveError):
    """No drafter is shipped or known for a target."""


def find_checkpoint(
    spec: str, target: Checkpoint, *, target_spec: str = "", learns: bool = False
) -> Path | None:
    """Return where the drafter that `spec` names is stored, downloading it if needed.

    Args:
        spec: A directory, a hub id `org/name`, `dflash` or `eagle3` (the one shipped for the
            target), `auto` (the fastest one shipped, else the one known for `target_spec`),
            `random[:seed]` or `random-eagle3[:seed]`.
        target: The target it shall draft for.
        target_spec: What the user calls the target.
        learns: Whether it shall learn while it drafts: `auto` then takes one that can.

    Returns:
        A directory; None for a random drafter, which is stored nowhere.

    Raises:
        NoDrafterError: If `auto` or a method's name finds none for the target.
        ResolveError: If the specification leads to nothing.
    """
    kind = spec.partition(":")[0]
    if kind in _RANDOM:
        return None
    if kind != "auto" and kind not in _BY_NAME:
        return resolve_target(spec)
    suitable = [method for method in FASTEST_FIRST if method.can_learn or not learns]
    for method in suitable if kind == "auto" else (_BY_NAME[kind],):
        shipped = shipped_for(method, target)
        if shipped is not None:
            return shipped
    if kind != "auto":
        raise NoDrafterError(
            f"no {_BY_NAME[kind].title} drafter is shipped for target {target.fingerprint}"
        )
    published = known_drafter(target_spec)
    if published is None:
        raise NoDrafterError(
            "no drafter is known for this target: name one with --drafter, or train one with "
            "`blockdraft train dflash` (docs/training.md)"
        )
    logger.info("drafter %s is known for target %s", published, target_spec)
    return resolve_target(published)


def obtain_drafter(
    spec: str,
    target: Checkpoint,
    *,
    target_spec: str = "",
    block_size: int,
    num_layers: int,
    dtype: DTypeLike,
) -> Drafter[Any]:
    """Return the drafter that `spec` names.

    Args:
        spec: As for `find_checkpoint`.
        target: The target it shall draft for.
        target_spec: What the user calls the target.
        block_size: Tokens per block, if it is to be random or does not say.
        num_layers: Draft layers, if it is to be random.
        dtype: Of weights and activations.

    Raises:
        CheckpointError: If the checkpoint is damaged or does not fit the target.
        ResolveError: If the specification leads to nothing.
    """
    path = find_checkpoint(spec, target, target_spec=target_spec)
    if path is not None:
        return load_any(path, target, block_size=block_size, dtype=dtype)
    kind, _, seed = spec.partition(":")
    method = _RANDOM[kind]
    try:
        config = method.default_config(target.config, block_size, num_layers)
    except ValueError as error:
        raise ResolveError(f"drafter {spec!r}: {error}") from error
    return random_drafter(method, config, target, seed=_seed(spec, seed), dtype=dtype)


def load_any(path: Path, target: Checkpoint, *, block_size: int, dtype: DTypeLike) -> Drafter[Any]:
    """Load a drafter of whichever method its configuration says; see `obtain_drafter`."""
    published = read_json(path / "config.json", required=True)
    try:
        method = published_method(published)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return load_drafter(method, path, target, dtype=dtype, block_size=block_size)


def shipped_for(
    method: MethodDefinition[Any, Any], target: Checkpoint, directory: Path = SHIPPED
) -> Path | None:
    """Return the checkpoint in `directory` of a method that was trained for a target, or None."""
    for path in sorted(directory.glob("*/config.json")):
        config = read_json(path)
        recorded = config.get("blockdraft", {}).get("target_fingerprint")
        if recorded == target.fingerprint and published_method(config) is method:
            return path.parent
    return None


def random_drafter(
    method: MethodDefinition[Config, Model],
    config: Config,
    target: Checkpoint,
    *,
    seed: int,
    dtype: DTypeLike,
) -> Drafter[Model]:
    """Return an untrained drafter; the same seed gives the same weights."""
    config = replace(config, target_fingerprint=target.fingerprint, trained=False)
    model = method.module(config, dtype=dtype, rngs=nnx.Rngs(seed))
    return Drafter(method, model, fingerprint(method, config, published_arrays(method, model)))


def _seed(spec: str, seed: str) -> int:
    if not seed:
        return 0
    if not seed.isdecimal():
        raise ResolveError(f"drafter {spec!r}: the seed must be a whole number")
    return int(seed)
