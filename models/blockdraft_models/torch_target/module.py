"""A module of transformers as a `Decoder`: same call, same caches, same attention.

The module computes as its authors wrote it, but for attention, which is the caller's, and the
products of `products.py`. torchax records PyTorch's operations as JAX's while a
step is traced; a compiled step knows nothing of PyTorch.
"""

import math
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int
from torch.func import functional_call
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import logging

from blockdraft_models.decoder.attention import Attend, DenseAttend, LayerCache, Reach
from blockdraft_models.decoder.linear import parameter
from blockdraft_models.decoder.model import Decoder, DecoderOutput
from blockdraft_models.decoder.self_conditioning import CanvasInputs
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.errors import CheckpointError
from blockdraft_models.torch_target.products import use_our_products
from blockdraft_models.weights.checkpoint import Checkpoint

_ATTENTION = "blockdraft"
# A module holds the values of one call while it is traced, and two steps compile at once.
_TRACING = threading.Lock()
# Sequences and tokens of the comparison with PyTorch, and the largest difference of logits as a
# share of their deviation. Rounding alone makes 0.13 in 30 layers of bfloat16; a wrong scale of
# scores made 0.37 in three layers.
_COMPARED = (2, 12)
_TOLERANCE = {jnp.dtype(jnp.float32): 1e-3, jnp.dtype(jnp.bfloat16): 0.3}


@dataclass
class _Call:
    """The state that a module's parts share while one call is traced."""

    attend: Attend[Any] | None = None
    caches: dict[int, Any] = field(default_factory=dict)
    updated: dict[int, Any] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)  # of each layer
    hidden: Any = None  # input of the head; None until the layers have computed it


_CALL: ContextVar[_Call] = ContextVar("call")


class TorchDecoder(Decoder):
    """The function of a `Decoder`, computed by a module of transformers.

    Attributes:
        weights: Its parameters and buffers, in the order of `names`.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: np.dtype[Any], placement: Placement | None
    ) -> None:
        """Load the module, move its weights to the device and compare it with PyTorch."""
        self.config = checkpoint.config
        module = _loaded(checkpoint, dtype)
        rng = np.random.default_rng(0)
        token_ids = rng.integers(0, self.config.vocab_size, _COMPARED)
        with torch.no_grad():
            expected = module(torch.as_tensor(token_ids)).logits.float().numpy()
        module.set_attn_implementation(_ATTENTION)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        sharding = placement and NamedSharding(placement.mesh, PartitionSpec())
        env = torchax.default_env()
        self.names = tuple(tensors)
        self.weights = nnx.List(
            parameter(
                jax.device_put(env.t2j_copy(tensor.detach()), sharding), (None,) * tensor.ndim
            )
            for tensor in tensors.values()
        )
        self.computed_in = dtype
        module.to("meta").tie_weights()
        self.module = _tapped(module, self.config.num_layers)
        _compare(self, token_ids, expected, checkpoint.path)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of weights and activations."""
        return self.computed_in

    @property
    def cache_count(self) -> int:
        """Number of caches that a call takes: one per layer."""
        return self.config.num_layers

    def __call__(
        self,
        token_ids: Int[Array, " tokens"],
        positions: Int[Array, " tokens"],
        caches: Sequence[LayerCache],
        attend: Attend[LayerCache],
        capture: tuple[int, ...] = (),
        adapters: Array | None = None,
        canvas: CanvasInputs | None = None,
    ) -> DecoderOutput:
        """Run all layers, without adapters and canvases; see `Decoder`."""
        call = _Call(attend, dict(enumerate(caches)))
        self._run(call, input_ids=token_ids[None], position_ids=positions[None])
        if call.updated.keys() != call.caches.keys():
            raise ValueError("some layers do not attend, or to something else than the layers do")
        empty = jnp.zeros((token_ids.shape[0], 0), self.dtype)
        captured = jnp.concatenate([empty, *(call.outputs[layer] for layer in capture)], axis=-1)
        updated = [call.updated[layer] for layer in range(self.cache_count)]
        return DecoderOutput(call.hidden, captured, updated)

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        """Score every token after each row of `DecoderOutput.hidden`, in float32."""
        return self._run(_Call(hidden=hidden))[0].astype(jnp.float32)

    def _run(self, call: _Call, **inputs: Array) -> Float[Array, "1 rows vocab"]:
        """Call the module; XLA leaves out logits that are not used."""
        env = torchax.default_env()
        values = env.j2t_iso([weight[...] for weight in self.weights])
        named = dict(zip(self.names, values, strict=True))
        # PyTorch promotes types and ranks, and multiplies float32 as such, which a TPU does not.
        promotes = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
        precise = jax.default_matmul_precision("highest")
        with _TRACING, promotes[0], promotes[1], precise, env, torch.no_grad():
            token = _CALL.set(call)
            try:
                arguments = {**env.j2t_iso(inputs), "use_cache": False}
                logits: Array = env.t2j_iso(
                    functional_call(self.module, named, (), arguments).logits
                )
            finally:
                _CALL.reset(token)
        return logits


def _loaded(checkpoint: Checkpoint, dtype: np.dtype[Any]) -> Any:
    """Load the module as PyTorch runs it, on the host."""
    use_our_products()
    AttentionInterface.register(_ATTENTION, _attention)
    logging.disable_progress_bar()
    try:
        module = AutoModelForCausalLM.from_pretrained(
            checkpoint.path,
            dtype=getattr(torch, dtype.name),
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except Exception as error:  # of many kinds, as files and families are
        raise CheckpointError(f"{checkpoint.path}: transformers: {error}") from error
    if not (module._supports_attention_backend and module._supports_flash_attn):
        raise CheckpointError(f"{checkpoint.path}: its attention cannot be replaced")
    return module.eval()


def _tapped(module: Any, layers: int) -> Any:
    """Have a module store its layers' outputs in the call, and read its head's input from there."""
    base = module.base_model
    lists = (child for child in base.children() if isinstance(child, torch.nn.ModuleList))
    for number, layer in enumerate(next(stack for stack in lists if len(stack) == layers)):

        def keep(_: Any, __: Any, output: Any, number: int = number) -> None:
            output = output[0] if isinstance(output, tuple) else output
            _CALL.get().outputs[number] = output.jax()[0]

        layer.register_forward_hook(keep)
    run_layers = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = _CALL.get()
        if call.hidden is None:
            call.hidden = run_layers(*args, **kwargs)[0].jax()[0]
        hidden = torchax.default_env().j2t_iso(call.hidden[None])
        return MoeModelOutputWithPast(last_hidden_state=hidden)

    base.forward = forward
    return module


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Any = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attend by the `Attend` of the call; tensors are [1, heads, tokens, head_dim]."""
    if attention_mask is not None or softcap is not None:
        raise ValueError("attention with a mask of its own or capped scores is not supported")
    env, call = torchax.default_env(), _CALL.get()
    q, k, v = (tensor[0].swapaxes(0, 1) for tensor in env.t2j_iso((query, key, value)))
    if k.shape != v.shape:
        raise ValueError("heads whose keys and values differ in width are not supported")
    scale = 1.0 if scaling is None else scaling * q.shape[-1] ** 0.5
    if not math.isclose(scale, 1.0):
        q = q * jnp.asarray(scale, q.dtype)
    sinks = None if s_aux is None else env.t2j_iso(s_aux).astype(jnp.float32)
    assert call.attend is not None
    layer = module.layer_idx
    with jax.default_matmul_precision("default"):
        out, call.updated[layer] = call.attend(
            q, k, v, call.caches[layer], Reach(sliding_window or 0, sinks=sinks)
        )
    return env.j2t_iso(out[None]), None


def _compare(
    decoder: TorchDecoder, token_ids: np.ndarray, expected: np.ndarray, path: Path
) -> None:
    """Refuse a decoder whose logits for some sequences differ from PyTorch's.

    The sequences are one flat batch, so that layers which mix positions without attention show too.
    """
    sequences, length = token_ids.shape
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), sequences)
    attend, caches = DenseAttend(sequences, length), [None] * decoder.cache_count

    @nnx.jit
    def logits(decoder: TorchDecoder, token_ids: Int[Array, " tokens"]) -> Array:
        return decoder.logits(decoder(token_ids, positions, caches, attend).hidden)

    try:
        results = np.asarray(logits(decoder, jnp.asarray(token_ids.reshape(-1), jnp.int32)))
    except Exception as error:  # whatever an operation raises that cannot be compiled
        raise CheckpointError(f"{path} cannot run on JAX: {error}") from error
    off = float(np.std(results.reshape(expected.shape) - expected) / np.std(expected))
    if not off <= _TOLERANCE[decoder.dtype]:
        raise CheckpointError(
            f"{path}: on JAX logits are off by {off:.2g} of their deviation in PyTorch"
        )
