"""The drafters there are, and their sources: a folder, the hub, this package, or chance.

Another draft method needs a folder like `dflash` and an entry in `METHODS`.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter.checkpoint import fingerprint, load_drafter, published_arrays
from blockdraft_drafter.compiled.definition import DraftConfig, Drafter, MethodDefinition
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_drafter.known import TARGETS_BY_SHAPE, known_drafter
from blockdraft_drafter.speculators import publishers_form
from blockdraft_models.errors import CheckpointError, ResolveError
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.fingerprint import shape_fingerprint
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_models.weights.resolve import resolve_target

logger = logging.getLogger(__name__)

AnyMethod = MethodDefinition[Any]

METHODS: tuple[AnyMethod, ...] = (EAGLE3, DFLASH)
"""The first that recognizes a checkpoint loads it; of several that ship for a target, the first is
preferred: the faster one (docs/adr/0038-the-fastest-drafter-first.md)."""

SHIPPED = Path(__file__).parent / "checkpoints"
# Methods by the specification of their shipped and of their random drafters.
_BY_NAME = {method.name: method for method in METHODS}
_RANDOM: Mapping[str, AnyMethod] = {"random": DFLASH, "random-eagle3": EAGLE3}


class NoDrafterError(ResolveError):
    """No drafter is shipped or known for a target."""


def published_method(config: Mapping[str, Any]) -> AnyMethod:
    """Return the method of a parsed `config.json`; raises ValueError if that is malformed."""
    return next(method for method in METHODS if method.config_type.recognizes(config))


def method_of(config: DraftConfig) -> AnyMethod:
    """Return the method whose drafters have this type of configuration."""
    return next(method for method in METHODS if isinstance(config, method.config_type))


def find_checkpoint(spec: str, target: Checkpoint, *, target_spec: str) -> Path | None:
    """Return the folder of the drafter that `spec` names, downloading it if needed.

    `spec` is a directory, a hub id `org/name`, `dflash` or `eagle3` (the one shipped for the
    target), `auto` (the fastest one shipped, else the one known for `target_spec`, as the user
    calls the target), `random[:seed]` or `random-eagle3[:seed]`: of a random drafter None is
    returned, for it is stored nowhere. Raises NoDrafterError if `auto` or a method's name finds
    none for the target, ResolveError if `spec` leads to nothing else or the target takes none.
    """
    kind = spec.partition(":")[0]
    if target.config.diffusion is not None:
        error = NoDrafterError if kind == "auto" else ResolveError
        raise error("a diffusion target takes no drafter: its steps choose several tokens already")
    if kind in _RANDOM:
        return None
    named = _BY_NAME.get(kind)
    if named is not None:
        shipped = shipped_for(named, target)
        if shipped is None:
            raise NoDrafterError(
                f"no {named.title} drafter is shipped for target {target.fingerprint}"
            )
        return shipped
    if kind != "auto":
        return resolve_target(spec)
    for method in METHODS:
        shipped = shipped_for(method, target)
        if shipped is not None:
            return shipped
    published = known_drafter(target_spec)
    if published is None:
        raise NoDrafterError(_advice(target))
    logger.info("drafter %s is known for target %s", published, target_spec)
    return resolve_target(published)


def _advice(target: Checkpoint) -> str:
    alike = TARGETS_BY_SHAPE.get(shape_fingerprint(target.config))
    if alike is not None:
        return (
            f"no drafter is known for this target's name, but it is shaped like {alike}: "
            f"if it is a copy, add --drafter {known_drafter(alike)}"
        )
    return (
        "no drafter is known for this target: name one with --drafter, or train one with "
        "`blockdraft train dflash` (docs/training.md)"
    )


def obtain_drafter(
    spec: str,
    target: Checkpoint,
    *,
    target_spec: str = "",
    block_size: int,
    num_layers: int,
    dtype: DTypeLike,
) -> Drafter[Any]:
    """Return the drafter that `spec` names as for `find_checkpoint`, its weights in `dtype`.

    A random drafter has `block_size` and `num_layers`; the same `spec` gives the same weights. A
    stored drafter has its own, except perhaps for the block size. Raises CheckpointError if the
    checkpoint is damaged or does not fit the target, ResolveError if the specification leads to
    nothing.
    """
    path = find_checkpoint(spec, target, target_spec=target_spec)
    if path is not None:
        return load_any(path, target, block_size=block_size, dtype=dtype)
    kind, _, seed = spec.partition(":")
    method = _RANDOM[kind]
    if seed and not seed.isdecimal():
        raise ResolveError(f"drafter {spec!r}: the seed must be a whole number")
    try:
        config = method.config_type.default_for(
            target.config, block_size=block_size, num_layers=num_layers
        )
    except ValueError as error:
        raise ResolveError(f"drafter {spec!r}: {error}") from error
    config = replace(config, target_fingerprint=target.fingerprint)
    model = method.module(config, dtype=dtype, rngs=nnx.Rngs(int(seed or 0)))
    return Drafter(method, model, fingerprint(config, published_arrays(model)))


def load_any(path: Path, target: Checkpoint, *, block_size: int, dtype: DTypeLike) -> Drafter[Any]:
    """Load a drafter of the method that its configuration names; see `load_drafter`."""
    config = read_json(path / "config.json", required=True)
    try:
        method = published_method(publishers_form(config, target.config.num_layers))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return load_drafter(method, path, target, dtype=dtype, block_size=block_size)


def shipped_for(method: AnyMethod, target: Checkpoint, directory: Path = SHIPPED) -> Path | None:
    """Return the checkpoint in `directory` of a method that was trained for a target, or None."""
    for path in sorted(directory.glob("*/config.json")):
        config = read_json(path)
        recorded = config.get("blockdraft", {}).get("target_fingerprint")
        if recorded == target.fingerprint and published_method(config) is method:
            return path.parent
    return None
