"""Where a drafter's training starts: from the target's own layers, not from noise.

The first draft layer meets what the target's first layer meets, bare embeddings; the last ones
must produce what the target's last layers produce, inputs of the same head. So draft layers are
copied from the ends of the target, `fc` passes the last captured layer through, and the final
norm is the target's.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_models.decoder.layer import DecoderLayer, Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_training.errors import TrainingError

# Share of a random fc kept beside the pass-through: the other features start with some say.
_FC_NOISE = 0.1


def from_target(
    config: DFlashConfig, decoder: Decoder, layer_ids: tuple[int, ...], *, seed: int
) -> DFlash:
    """Return a drafter in float32 whose layers are copies of target layers.

    Args:
        config: Its shape: layers as wide as the target's.
        decoder: The target.
        layer_ids: Which target layer each draft layer copies.
        seed: Of what is not copied.

    Raises:
        TrainingError: If a draft layer has another shape than the target's layers.
    """
    model = DFlash(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    for layer, layer_id in zip(model.layers, layer_ids, strict=True):
        _copy_layer(layer, decoder.layers[layer_id])
    model.norm.scale[...] = decoder.norm.scale[...].astype(jnp.float32)
    _pass_last_feature(model.fc, config.decoder.hidden_size)
    return model


def from_drafter(
    config: DFlashConfig,
    earlier: Drafter[DFlash],
    draft_ids: Int[np.ndarray, " draft"] | None,
    *,
    seed: int,
) -> DFlash:
    """Return an earlier drafter, as far as it fits, in float32.

    Its layers are kept. A Markov head is kept for the tokens both vocabularies have; if the rank
    is another or there was none, it starts anew.

    Args:
        config: The new drafter's.
        earlier: What to start from.
        draft_ids: The new draft vocabulary.
        seed: Of what is not kept.
    """
    model = DFlash(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    kept = earlier.model
    model.fc, model.hidden_norm = kept.fc, kept.hidden_norm
    model.layers, model.norm = kept.layers, kept.norm
    ours, theirs = model.markov_head, kept.markov_head
    if ours is None or theirs is None or kept.config.markov_rank != config.markov_rank:
        return model
    every = np.arange(config.decoder.vocab_size)
    old = every if earlier.draft_ids is None else earlier.draft_ids
    row_of = np.full(len(every), -1)
    row_of[old] = np.arange(len(old))
    rows = row_of[every if draft_ids is None else draft_ids]
    moved = theirs.markov_w2[...][np.maximum(rows, 0)]
    ours.markov_w1[...] = theirs.markov_w1[...]
    ours.markov_w2[...] = jnp.where((rows >= 0)[:, None], moved, 0.0)
    return model


def eagle3_from_target(config: Eagle3Config, decoder: Decoder, *, seed: int) -> Eagle3:
    """Return an EAGLE-3 drafter in float32 whose layer is the target's last one.

    It reads the projected feature as the target's layer read its input; what it reads of the
    token beside it starts as noise.

    Args:
        config: Its shape: a layer as wide as the target's.
        decoder: The target.
        seed: Of what is not copied.

    Raises:
        TrainingError: If the layer has another shape than the target's.
    """
    model = Eagle3(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    last = decoder.layers[len(decoder.layers) - 1]
    hidden = config.decoder.hidden_size
    for ours, theirs in (
        (model.attention.query, last.attention.query),
        (model.attention.key, last.attention.key),
        (model.attention.value, last.attention.value),
    ):
        weight = theirs.weight[...].astype(jnp.float32)
        if weight.shape != (ours.weight.shape[0], hidden):
            raise TrainingError(
                f"the target's projection is {weight.shape}, the draft layer's takes {hidden}:"
                " only layers of the target's shape can copy it"
            )
        noise = ours.weight[...] * _FC_NOISE
        ours.weight[...] = noise.at[:, hidden:].set(weight)
    for ours, theirs in (
        (model.attention.output, last.attention.output),
        (model.mlp.gate, last.mlp.gate),
        (model.mlp.up, last.mlp.up),
        (model.mlp.down, last.mlp.down),
    ):
        ours.weight[...] = theirs.weight[...].astype(jnp.float32)
    for norm, scale in (
        (model.hidden_norm, last.attention_norm),
        (model.mlp_norm, last.mlp_norm),
        (model.norm, decoder.norm),
    ):
        norm.scale[...] = scale.scale[...].astype(jnp.float32)
    _pass_last_feature(model.fc, hidden)
    return model


def _pass_last_feature(fc: Linear, hidden: int) -> None:
    passing = fc.weight[...] * _FC_NOISE
    fc.weight[...] = passing.at[:, -hidden:].add(jnp.eye(hidden))


def _copy_layer(ours: DecoderLayer, theirs: DecoderLayer) -> None:
    """Copy weights; the input norm's scale moves into the projections behind it.

    Contexts pass the projections without the layer's input norm, so only with a scale of one do
    they arrive as the target's own keys and values.
    """
    weights = dict(nnx.to_flat_state(nnx.state(theirs)))
    flat = dict(nnx.to_flat_state(nnx.state(ours)))
    for key, variable in flat.items():
        if key not in weights:
            continue  # q and k norms, which this target may lack
        value = weights[key][...].astype(jnp.float32)
        if value.shape != variable[...].shape:
            raise TrainingError(
                f"draft layer weight {'.'.join(map(str, key))} is {variable[...].shape}, the"
                f" target's {value.shape}: only layers of the target's shape can copy it"
            )
        flat[key] = variable.replace(value)
    nnx.update(ours, nnx.from_flat_state(flat))
    attention, scale = ours.attention, ours.attention_norm.scale[...]
    for projection in (attention.query, attention.key, attention.value):
        projection.weight[...] = projection.weight[...] * scale[None, :]
    ours.attention_norm.scale[...] = jnp.ones_like(scale)
    if theirs.attention.query_norm is None:
        for norm, projection in (
            (attention.query_norm, attention.query),
            (attention.key_norm, attention.key),
        ):
            assert norm is not None  # DFlash layers always have them
            norm.scale[...] = jnp.full_like(norm.scale[...], _typical_size(projection.weight[...]))


def _typical_size(weight: Float[Array, "out in"]) -> Float[Array, ""]:
    """Return the root mean square of a projection of inputs of mean square one."""
    return jnp.sqrt(jnp.mean(jnp.sum(weight**2, axis=1)))
