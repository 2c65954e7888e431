"""A decoder whose equal layers are one scanned layer: compiled once, whatever its depth.

Unrolled, a step of 32 layers takes minutes to compile for a TPU; scanned, five seconds. On CPU
unrolled layers run faster (docs/adr/0004, docs/adr/0012), so the platform decides.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Shaped

from blockdraft_models.decoder.attention import EVERYTHING, Attend, LayerCache, Reach, SideInputs
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.layer import Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import LAYERS, Placement


class ScannedDecoder(Decoder):
    """The function of a `Decoder`, with every layer's weights stacked along a leading axis.

    There is one cache instead of one per layer, threaded through the layers in order: `attend`
    takes it, and returns it for the next layer. So an array of all layers is updated in place,
    while a slice of one layer would be a copy.

    Attributes:
        layer: One decoder layer; each of its weights is [layers, ...].
    """

    def __init__(self, decoder: Decoder, placement: Placement | None = None) -> None:
        """Stack the layers of a decoder where they are placed; it cannot be used afterwards.

        Each kind of weight is stacked by itself and its parts are freed at once, so the peak is
        the model plus one kind of weight.
        """
        if decoder.config.global_head_dim is not None or decoder.config.shared_kv_layers:
            raise ValueError("layers of several forms are not scanned, and so not served on TPUs")
        self.config = decoder.config
        self.embedding = decoder.embedding
        self.layer_embeddings = decoder.layer_embeddings
        self.norm = decoder.norm
        self.head = decoder.head
        states = [dict(nnx.to_flat_state(nnx.state(layer))) for layer in decoder.layers]
        stacked = {}
        for path, variable in states[0].items():
            axes = (LAYERS, *variable.get_metadata()["out_sharding"])
            sharding = None if placement is None else placement.sharding(axes, self.config)
            weight = _stack([state[path].get_raw_value() for state in states], sharding)
            stacked[path] = nnx.Param(weight, out_sharding=axes, eager_sharding=False)
        graph = nnx.graphdef(decoder.layers[0])
        self.layer = nnx.merge(graph, nnx.from_flat_state(stacked))

    @property
    def cache_count(self) -> int:
        """Number of caches that a call takes: one for all layers."""
        return 1

    def _run_layers(
        self,
        x: Float[Array, "tokens hidden"],
        rotaries: tuple[Rotary, Rotary],
        caches: Sequence[LayerCache],
        attend: Attend[LayerCache],
        capture: tuple[int, ...],
        embedded: Float[Array, "layers tokens width"] | None,
    ) -> tuple[Float[Array, "tokens hidden"], Float[Array, "tokens captured"], list[LayerCache]]:
        [cache] = caches
        # Slicing a layer out of matrices would copy it, and they are nearly all of the weights.
        graph, *states = nnx.split(self.layer, _is_matrix, ...)
        matrices, stack = states
        # The place of each layer's output; the last place is for layers that are not captured.
        captured_ids = sorted(set(capture))
        places = jnp.array(
            [
                captured_ids.index(layer_id) if layer_id in captured_ids else len(captured_ids)
                for layer_id in range(self.config.num_layers)
            ],
            jnp.int32,
        )

        windows, rotated = self.config.windows, self.config.rotated

        def run_layer(
            carry: tuple[Array, LayerCache, Array],
            layer: tuple[Any, Array, Array | None, Array | None, Array, Array | None],
        ) -> tuple[tuple[Array, LayerCache, Array], None]:
            x, cache, outputs = carry
            weights, place, applies, rotates, number, embedded = layer
            rotary, reach = rotaries[0], EVERYTHING
            if applies is not None:
                reach = Reach(max(windows), applies)
                if rotaries[1] is not rotary:
                    both = zip(*rotaries, strict=True)
                    rotary = Rotary(*(jnp.where(applies, near, far) for far, near in both))
            if rotates is not None:
                rotary = rotary.where(rotates)
            decoder_layer = nnx.merge(graph, matrices, weights)
            _choose_layer(decoder_layer, number)
            side = SideInputs(embedded=embedded)
            x, cache = decoder_layer(x, rotary, cache, attend, reach, side)
            return (x, cache, outputs.at[place].set(x)), None

        outputs = jnp.zeros((len(captured_ids) + 1, *x.shape), x.dtype)
        numbers = jnp.arange(self.config.num_layers, dtype=jnp.int32)
        applies = jnp.array(windows) > 0 if windows else None
        rotates = jnp.array(rotated) if rotated else None
        of_layers = stack, places, applies, rotates, numbers, embedded
        (x, cache, outputs), _ = jax.lax.scan(run_layer, (x, cache, outputs), of_layers)
        captured = [outputs[captured_ids.index(layer_id)] for layer_id in capture]
        empty = jnp.zeros((x.shape[0], 0), x.dtype)
        return x, jnp.concatenate([empty, *captured], axis=-1), [cache]


def _is_matrix(_: tuple[Any, ...], weight: Any) -> bool:
    stacked_axes = weight.get_metadata()["out_sharding"]
    return len(stacked_axes) > 2


def _choose_layer(layer: DecoderLayer, number: Int[Array, ""]) -> None:
    for _, part in nnx.iter_modules(layer):
        if isinstance(part, Linear | Experts):
            part.layer = number


def _stack(parts: list[Array], sharding: NamedSharding | None) -> Shaped[Array, "layers ..."]:
    if isinstance(parts[0], jax.core.Tracer):
        return jnp.stack(parts)
    stack = jax.jit(lambda parts: jnp.stack(parts), out_shardings=sharding)
    stacked: Array = jax.block_until_ready(stack(parts))
    for part in parts:
        part.delete()
    return stacked
