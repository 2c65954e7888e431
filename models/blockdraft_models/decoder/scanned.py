"""A decoder whose layers are scanned by periods: compiled once, whatever its depth.

Unrolled, a step of 32 layers takes minutes to compile for a TPU; scanned, five seconds. On CPU
unrolled layers run faster (docs/adr/0004, docs/adr/0012), so the platform decides. Most decoders
have layers of one form: a period is one layer.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from blockdraft_models.decoder.attention import Attend, KeptKV, LayerCache, Reach, SideInputs
from blockdraft_models.decoder.config import LayerForm
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.latent_attention import HeadMaps
from blockdraft_models.decoder.linear import Linear
from blockdraft_models.decoder.model import Decoder, choose_adapters
from blockdraft_models.decoder.periods import periods
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import LAYERS, Place, Placement


class _Place(NamedTuple):
    """The layers of one place in a period, but for what the scan takes apart."""

    form: LayerForm
    window: int  # of every layer; 0 for none
    graph: nnx.GraphDef[DecoderLayer]
    matrices: Any  # [repetitions, ...]: slicing would copy them, and they are nearly all weights


class _OfLayers(NamedTuple):
    """Arrays that the scan takes apart, layer by layer; None where layers do not differ."""

    weights: Any  # all but the matrices
    output: Array  # Int[Array, "repetitions"], where a layer's output is kept
    applies: Array | None  # Bool[Array, "repetitions"], whether the window applies
    rotates: Array | None  # Bool[Array, "repetitions"], whether heads are rotated
    number: Array  # Int[Array, "repetitions"], in the stack
    embedded: Array | None  # Float[Array, "repetitions tokens width"], see `LayerEmbeddings`


class ScannedDecoder(Decoder):
    """The function of a `Decoder`, with every layer's weights stacked along a leading axis.

    There is one cache instead of one per layer, or two if layers without a window have heads of
    another width, or some layers a state, threaded through the layers in order: `attend` takes it,
    and returns it for the next layer. So an array of all layers is updated in place, while a slice
    of one layer would be a copy.

    Attributes:
        layers: One decoder layer for each place in each of the `periods`; each of its weights is
            [repetitions, ...].
    """

    def __init__(self, decoder: Decoder, placement: Placement | None = None) -> None:
        """Stack the layers of a decoder where they are placed; it cannot be used afterwards.

        Each kind of weight is stacked by itself and its parts are freed at once, so the peak is
        the model plus one kind of weight.
        """
        self.config, self.adapter_ranks = decoder.config, decoder.adapter_ranks
        self.embedding = decoder.embedding
        self.layer_embeddings = decoder.layer_embeddings
        self.conditioning = decoder.conditioning
        self.norm = decoder.norm
        self.head = decoder.head
        layers = list(decoder.layers)
        places = [place for period in periods(self.config) for place in period.places()]
        self.layers = nnx.List([self._stacked(layers[place], placement) for place in places])

    def _stacked(self, layers: Sequence[DecoderLayer], placement: Placement | None) -> DecoderLayer:
        states = [dict(nnx.to_flat_state(nnx.state(layer))) for layer in layers]
        stacked = {}
        for path, variable in states[0].items():
            axes = (LAYERS, *variable.get_metadata()["out_sharding"])
            parts, place = [state[path].get_raw_value() for state in states], None
            if placement is not None:
                shape = len(parts), *parts[0].shape
                place = placement.place(axes, shape, self.config)
            weight = _stack(parts, place)
            stacked[path] = nnx.Param(weight, out_sharding=axes, eager_sharding=False)
        merged: DecoderLayer = nnx.merge(nnx.graphdef(layers[0]), nnx.from_flat_state(stacked))
        return merged

    @property
    def cache_count(self) -> int:
        """Number of caches that a call takes: one for all layers with heads of one width."""
        has_second = self.config.global_head_dim is not None or any(self.config.recurrent)
        return 2 if has_second else 1

    def _run_layers(
        self,
        x: Float[Array, "tokens hidden"],
        rotaries: tuple[Rotary, Rotary],
        caches: Sequence[LayerCache],
        attend: Attend[LayerCache],
        capture: tuple[int, ...],
        inputs: SideInputs,
        columns: Bool[Array, "tokens ranks"] | None,
    ) -> tuple[Float[Array, "tokens hidden"], Float[Array, "tokens captured"], list[LayerCache]]:
        captured_ids = sorted(set(capture))
        # Keys and values of the last layer with heads of each width.
        kv: dict[bool, tuple[Array, Array]] = {}

        def run_period(
            places: list[_Place],
            carry: tuple[Array, list[LayerCache], Array],
            of_layers: list[_OfLayers],
        ) -> tuple[tuple[Array, list[LayerCache], Array], Any]:
            (x, caches, outputs), own_kv = carry, {}
            for place, of_layer in zip(places, of_layers, strict=True):
                layer = nnx.merge(place.graph, place.matrices, of_layer.weights)
                _choose_layer(layer, of_layer.number)
                choose_adapters(layer, columns)
                rotary, reach = self._surroundings(rotaries, place, of_layer)
                keep, kind = KeptKV(attend), place.form.is_global or place.form.recurrent
                side = SideInputs(kv.get(kind), of_layer.embedded, inputs.joint)
                mixing = attend if place.form.recurrent else keep
                x, caches[kind] = layer(x, rotary, caches[kind], mixing, reach, side)
                outputs = outputs.at[of_layer.output].set(x)
                if self.config.shared_kv_layers and place.form.own_kv:
                    own_kv[kind] = keep.kv
            return (x, caches, outputs), own_kv

        # The last output is that of layers that are not captured.
        outputs = jnp.zeros((len(captured_ids) + 1, *x.shape), x.dtype)
        carry, stacks = (x, list(caches), outputs), iter(self.layers)
        for period in periods(self.config):
            places, of_layers = [], []
            for layers in period.places():
                graph, *states = nnx.split(next(stacks), _is_matrix, ...)
                matrices, weights = states
                form, window = self.config.form(layers.start), self.config.window(layers.start)
                places.append(_Place(form, window, graph, matrices))
                of_layers.append(self._of_layers(layers, weights, captured_ids, inputs.embedded))
            carry, own_kv = jax.lax.scan(partial(run_period, places), carry, of_layers)
            kv |= jax.tree.map(lambda of_layers: of_layers[-1], own_kv)
        x, updated, outputs = carry
        captured = [outputs[captured_ids.index(layer_id)] for layer_id in capture]
        empty = jnp.zeros((x.shape[0], 0), x.dtype)
        return x, jnp.concatenate([empty, *captured], axis=-1), updated

    def _of_layers(
        self,
        layers: slice,
        weights: Any,
        captured_ids: list[int],
        embedded: Float[Array, "layers tokens width"] | None,
    ) -> _OfLayers:
        config, numbers = self.config, range(self.config.num_layers)[layers]
        in_stack = jnp.arange(len(numbers), dtype=jnp.int32)
        outputs = [
            captured_ids.index(number) if number in captured_ids else len(captured_ids)
            for number in numbers
        ]
        differ = config.windows and config.global_head_dim is None
        return _OfLayers(
            weights,
            jnp.array(outputs, jnp.int32),
            jnp.array(config.windows[layers]) > 0 if differ else None,
            jnp.array(config.rotated[layers]) if config.rotated else None,
            in_stack,
            None if embedded is None else embedded[layers],
        )

    def _surroundings(
        self, rotaries: tuple[Rotary, Rotary], place: _Place, of_layer: _OfLayers
    ) -> tuple[Rotary, Reach]:
        """Return the rotations of a layer, and what it sees."""
        rotary, applies = rotaries[place.window > 0], of_layer.applies
        canvas = self.config.canvas_grain
        reach = Reach(place.window, stored=not place.form.own_kv, canvas=canvas)
        if applies is not None:
            rotary, reach = rotaries[0], Reach(max(self.config.windows), applies)
            if rotaries[1] is not rotary:
                both = zip(*rotaries, strict=True)
                rotary = Rotary(*(jnp.where(applies, near, far) for far, near in both))
        return rotary if of_layer.rotates is None else rotary.where(of_layer.rotates), reach


def _is_matrix(path: tuple[Any, ...], weight: Any) -> bool:
    stacked_axes = weight.get_metadata()["out_sharding"]
    return len(stacked_axes) > 2 and path[-1] not in ("taps", "share")


def _choose_layer(layer: DecoderLayer, number: Int[Array, ""]) -> None:
    for _, part in nnx.iter_modules(layer):
        if isinstance(part, Linear | Experts | HeadMaps):
            part.layer = number


def _stack(parts: list[Array], place: Place | None) -> Shaped[Array, "layers ..."]:
    if isinstance(parts[0], jax.core.Tracer):
        return jnp.stack(parts)
    stack = jax.jit(lambda parts: jnp.stack(parts), out_shardings=place)
    stacked: Array = jax.block_until_ready(stack(parts))
    for part in parts:
        part.delete()
    return stacked
