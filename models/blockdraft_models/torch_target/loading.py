"""Loading a target as a module of transformers."""

from pathlib import Path

import jax.numpy as jnp
from jaxtyping import DTypeLike

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.errors import CheckpointError, ModelError
from blockdraft_models.weights.checkpoint import Checkpoint, open_checkpoint

_INSTALL = "pip install 'blockdraft[torch]'"


def load_torch_decoder(
    path: Path, *, dtype: DTypeLike, placement: Placement | None = None
) -> tuple[Decoder, Checkpoint]:
    """Load a decoder of any family from a Hugging Face directory, as transformers computes it.

    It is compared with PyTorch before it is returned. `ModelError` says why it cannot be served.
    """
    try:
        from blockdraft_models.torch_target.module import TorchDecoder
    except (ImportError, AttributeError) as error:
        # An AttributeError is what torchax raises with a version of torch that it does not know.
        raise ModelError(f"--implementation torch needs {_INSTALL}: {error}") from error
    if placement is not None and placement.mesh.size > 1:
        raise ModelError("--implementation torch serves on one device only")
    if not path.is_dir():
        raise CheckpointError(f"{path}: --implementation torch reads folders, not GGUF files")
    with open_checkpoint(path, any_family=True) as source:
        checkpoint = source.checkpoint
    return TorchDecoder(checkpoint, jnp.dtype(dtype), placement), checkpoint


def torch_versions() -> str:
    """Return the versions that compute a target in PyTorch, for its computation's fingerprint."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "torchax", "transformers"))
