"""The target decoder: every family from one module, switched by `DecoderConfig`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from blockdraft_models.decoder.attention import Attend, KeptKV, LayerCache, Reach, SideInputs
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.latent_attention import HeadMaps
from blockdraft_models.decoder.layer import RMSNorm, norm
from blockdraft_models.decoder.layer_embeddings import LayerEmbeddings
from blockdraft_models.decoder.linear import Embedding, Linear, LowRank
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.rope import Rotary, rotary_tables
from blockdraft_models.decoder.self_conditioning import CanvasInputs, SelfConditioning
from blockdraft_models.decoder.sharding import EMBED, VOCAB, Placement
from blockdraft_models.diffusion import NoiseDiffusion


class DecoderOutput(NamedTuple):
    """The results of one forward pass; a pytree, so jitted functions may return it whole."""

    hidden: Array  # Float[Array, "tokens hidden"], after the final norm: the input of `logits`
    # Float[Array, "tokens n_captured*hidden"], the outputs of the captured layers side by side, in
    # the order they were asked for.
    captured: Array
    caches: list[Any]  # the updated caches, of the types passed in


class Decoder(nnx.Module):
    """A decoder over flat tokens; the head is None where the embedding doubles as it.

    Layers are unrolled: on CPU a step over one token takes half the time that scanning over
    stacked weights takes, and no step was slower (docs/adr/0004). The price is compilation, a few
    seconds for 30 layers; for a TPU it is minutes, hence `scanned.py`.

    Attributes:
        adapter_ranks: Columns of each adapter in every `LowRank`; adapters are numbered from 1.
    """

    adapter_ranks: tuple[int, ...] = ()

    def __init__(
        self, config: DecoderConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs | None
    ) -> None:
        """Initialize random weights, zeros without `rngs`; `dtype` is that of activations too."""
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [
                DecoderLayer(config.of_layer(layer), dtype=dtype, rngs=rngs)
                for layer in range(config.num_layers)
            ]
        )
        size = config.layer_embedding_size
        self.layer_embeddings = LayerEmbeddings(config, dtype=dtype, rngs=rngs) if size else None
        noisy = isinstance(config.diffusion, NoiseDiffusion)
        self.conditioning = SelfConditioning(config, dtype=dtype, rngs=rngs) if noisy else None
        self.norm = norm(config, config.hidden_size, EMBED, dtype)
        head: Linear | None = None
        if not config.tie_word_embeddings:
            sizes = config.hidden_size, config.vocab_size
            head = Linear(*sizes, (VOCAB, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.head = head

    @property
    def dtype(self) -> jnp.dtype:
        """The element type of activations, and of weights unless they are quantized."""
        return self.embedding.dtype

    @property
    def cache_count(self) -> int:
        """Number of caches that a call takes: one per layer with keys or a state."""
        return self.config.kv_layers

    def divide(self, mesh: Mesh) -> None:
        """Have the devices of a mesh compute each product together, in one order."""
        placement = Placement(mesh)
        for _, part in nnx.iter_modules(self):
            if isinstance(part, Linear):
                weight = part.weight
            elif isinstance(part, Embedding):
                weight = part.table
            elif isinstance(part, Experts):
                weight = part.gate.weight
            elif isinstance(part, HeadMaps):
                weight = part.maps
            elif isinstance(part, RMSNorm):
                part.division = placement.division((None, part.heads), self.config)
                continue
            else:
                continue
            axes = weight.get_metadata()["out_sharding"]
            part.division = placement.division(axes, self.config)

    def __call__(
        self,
        token_ids: Int[Array, " tokens"],
        positions: Int[Array, " tokens"],
        caches: Sequence[LayerCache],
        attend: Attend[LayerCache],
        capture: tuple[int, ...] = (),
        adapters: Int[Array, " tokens"] | None = None,
        canvas: CanvasInputs | None = None,
    ) -> DecoderOutput:
        """Run all layers over a flat batch of tokens of any number of sequences.

        A position is that of a token in its own sequence. `cache_count` opaque caches are passed
        to `attend`. `capture` lists the layers whose outputs (after the residual) to return, as
        `target_layer_ids` of DFlash checkpoints does. `adapters` is the number of each token's
        adapter, 0 for none; None for a decoder without. `canvas` are the tokens that are denoised.
        """
        if not all(0 <= layer_id < self.config.num_layers for layer_id in capture):
            raise ValueError(f"cannot capture layers {capture} of {self.config.num_layers}")
        config = self.config
        rotary = rotary_tables(config.of_kind(is_global=True), positions)
        local = rotary
        if config.local_rope_theta is not None:
            local = rotary_tables(config, positions, local=True)
        x = self.embedding(token_ids)
        if config.embedding_scale != 1.0:
            x = x * jnp.asarray(config.embedding_scale, x.dtype)
        if canvas is not None:
            assert self.conditioning is not None
            x = self.conditioning(x, canvas)
        embedded = None if self.layer_embeddings is None else self.layer_embeddings(token_ids, x)
        columns = None
        if adapters is not None:
            numbers = np.repeat(np.arange(1, 1 + len(self.adapter_ranks)), self.adapter_ranks)
            columns = adapters[:, None] == numbers[None]
        x, captured, updated = self._run_layers(
            x,
            (rotary, local),
            caches,
            attend,
            capture,
            SideInputs(embedded=embedded, joint=None if canvas is None else canvas.joint),
            columns,
        )
        hidden = self.norm(x)
        if config.logit_divisor != 1.0:
            hidden = hidden / jnp.asarray(config.logit_divisor, hidden.dtype)
        return DecoderOutput(hidden, captured, updated)

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
        """Return the last layer's output, the captured layers' outputs and the caches.

        The embeddings of `inputs` are of all layers, Float[Array, "layers tokens width"].
        The second of the rotaries is that of layers with a window, `columns` those of adapters.
        """
        if len(caches) != self.cache_count:
            raise ValueError(f"expected {self.cache_count} caches, got {len(caches)}")
        updated, shares = list(caches), self.config.shared_kv_layers > 0
        keepers = [KeptKV(attend) for _ in caches] if shares else []
        outputs: dict[int, Array] = {}
        for layer_id, layer in enumerate(self.layers):
            choose_adapters(layer, columns)
            window, source = self.config.window(layer_id), self.config.kv_layer(layer_id)
            number = self.config.cache_number(layer_id)
            rotary = rotaries[window > 0]
            if self.config.rotated:
                rotary = rotary.where(self.config.rotated[layer_id])
            keep = keepers[source] if shares else None
            reach = Reach(window, stored=source != layer_id, canvas=self.config.canvas_grain)
            embedded = inputs.embedded
            side = SideInputs(
                None if keep is None else keep.kv,
                None if embedded is None else embedded[layer_id],
                inputs.joint,
            )
            x, updated[number] = layer(x, rotary, updated[number], keep or attend, reach, side)
            if layer_id in capture:
                outputs[layer_id] = x
        captured = (
            jnp.concatenate([outputs[layer_id] for layer_id in capture], axis=-1)
            if capture
            else jnp.zeros((x.shape[0], 0), x.dtype)
        )
        return x, captured, updated

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        """Score every token after each row of `DecoderOutput.hidden`, in float32."""
        head = self.embedding if self.head is None else self.head
        scores = project(hidden, head.matrix, dtype=jnp.float32, division=head.division)
        cap = self.config.logit_cap
        return scores if cap is None else jnp.tanh(scores / cap) * cap


def choose_adapters(layer: DecoderLayer, columns: Bool[Array, "tokens ranks"] | None) -> None:
    """Set the columns of a layer's adapters."""
    for _, part in nnx.iter_modules(layer):
        if isinstance(part, LowRank):
            part.columns = columns
