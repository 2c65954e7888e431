"""The implementation of an operation for the platform that a program is lowered for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import Mesh

_platform: ContextVar[str | None] = ContextVar("platform", default=None)


@contextmanager
def lowering_on(mesh: Mesh | None) -> Iterator[None]:
    """Trace for the devices of a mesh, or without one for JAX's default backend.

    JAX would trace every implementation and keep one: a quarter to a third of the work of lowering.
    """
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    token = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(token)


def by_platform(
    *operands: Any, default: Callable[..., Any], **implementations: Callable[..., Any]
) -> Any:
    """Apply the implementation for the platform, by its name, or else `default`."""
    platform = _platform.get()
    if platform is None:
        return jax.lax.platform_dependent(*operands, default=default, **implementations)
    return implementations.get(platform, default)(*operands)
