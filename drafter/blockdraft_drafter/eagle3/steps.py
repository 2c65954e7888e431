"""The computations of an EAGLE-3 step, as pure functions to be compiled whole."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from blockdraft_drafter.compiled.choice import draft_tokens
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.compiled.steps import Drafted, DraftSteps, DraftWeights
from blockdraft_drafter.compiled.weight_shapes import whole_shapes
from blockdraft_drafter.context import buffer
from blockdraft_drafter.context.attention import ChainAttend
from blockdraft_drafter.context.buffer import LayerContext
from blockdraft_drafter.context.portable import ContextView, Keys
from blockdraft_drafter.eagle3.model import Eagle3


class Eagle3Context(NamedTuple):
    """The contexts of all slots; a pytree.

    Attributes:
        layer: Keys and values of every committed position.
        latest: Float[Array, "slots hidden"], the projected feature of the last one, where
            drafting begins.
    """

    layer: LayerContext
    latest: Array


class _Pass(NamedTuple):
    """What one pass gives: a token for each block, and where the next pass goes on."""

    token: Array
    log_chance: Array
    hidden: Array
    own: Keys | None


@dataclass(frozen=True, slots=True)
class Eagle3Steps(DraftSteps):
    """The computations of an EAGLE-3 step."""

    token_by_token: ClassVar[bool] = True

    def context(self) -> Eagle3Context:
        """Return shape, type and place of the context buffer of all slots."""
        [layer] = self.layer_contexts()
        shape = (self.room.max_sequences, self.decoder.hidden_size)
        latest = jax.ShapeDtypeStruct(shape, self.dtype)
        return Eagle3Context(layer, whole_shapes(latest, self.placement))

    def append(
        self, weights: DraftWeights, context: Eagle3Context, new: PackedFeatures
    ) -> Eagle3Context:
        """Project features and store them in the context buffer."""
        model: Eagle3 = nnx.merge(self.graph, weights.model)
        hidden = self.hidden_states(model.projection, new)
        embedded = weights.target.embedding[new.next_tokens]
        keys, values = model.keys_values(embedded, hidden, new.positions)
        # A slot's positions lie side by side; of each slot only the last is where drafting begins.
        count = new.slots.shape[0]
        into_slot = new.slots[None, :] == jnp.arange(context.latest.shape[0])[:, None]
        last = jnp.max(jnp.where(into_slot, jnp.arange(count)[None, :], -1), axis=1)
        newest = hidden[jnp.maximum(last, 0)].astype(context.latest.dtype)
        latest = jnp.where((last >= 0)[:, None], newest, context.latest)
        layer = buffer.write(context.layer, new.slots, new.positions, keys, values)
        return Eagle3Context(layer, latest)

    def append_and_draft(
        self,
        weights: DraftWeights,
        context: Eagle3Context,
        new: PackedFeatures,
        blocks: PackedBlocks,
    ) -> tuple[Eagle3Context, Drafted]:
        """Append `new`, then draft `blocks` token by token from contexts that include it.

        A block ends with as many tokens as are wanted of it, or where it is too unlikely that all
        of them are right. One executable does for all numbers of tokens: passes that no block
        needs are left out while it runs. What stands in their place means nothing.
        """
        context = self.append(weights, context, new)
        model: Eagle3 = nnx.merge(self.graph, weights.model)
        _, target, draft_ids = weights
        # The last committed position is the first pass's own entry, not its context.
        before = jnp.maximum(blocks.lengths - 1, 0)
        attend = ChainAttend(ContextView(context.layer, blocks.slots, before), self.sharding)
        hidden = context.latest[blocks.slots].astype(target.embedding.dtype)
        hidden = jnp.where((blocks.lengths > 0)[:, None], hidden, jnp.zeros_like(hidden))
        sampling = jax.tree.map(jnp.asarray, blocks.sampling)

        def one_pass(index: int, token: Array, hidden: Array, own: Keys | None) -> _Pass:
            hidden, own = model.step(target.embedding[token], hidden, before + index, own, attend)
            # The first drafted token is the one after the anchor.
            position = jnp.asarray(blocks.lengths) + 1 + index
            logits = target.logits(model.norm(hidden))
            return _Pass(*draft_tokens(logits, position, sampling, draft_ids), hidden, own)

        last = one_pass(0, jnp.asarray(blocks.anchors), hidden, None)
        passes, chance = [last], jnp.exp(last.log_chance)
        counts = jnp.minimum(blocks.wanted, 1)
        for index in range(1, model.config.block_size - 1):
            goes_on = (counts == index) & (index < blocks.wanted) & (chance >= blocks.least_chances)
            make = partial(one_pass, index)
            operands = last.token, last.hidden, last.own
            last = jax.lax.cond(jnp.any(goes_on), make, _no_pass, *operands)
            passes.append(last)
            counts += goes_on.astype(counts.dtype)
            chance *= jnp.exp(last.log_chance)
        return context, Drafted(jnp.stack([one.token for one in passes], axis=1), counts)


def _no_pass(token: Array, hidden: Array, own: Keys) -> _Pass:
    """Return what has the form of a pass."""
    keys, values = (jnp.pad(part, ((0, 0), (0, 1), (0, 0), (0, 0))) for part in own)
    return _Pass(token, jnp.zeros(token.shape, jnp.float32), hidden, (keys, values))
