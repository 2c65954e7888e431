"""The completions held out, and acceptance on them, exactly as serving would have it.

The completion is known, so speculative decoding of it can be replayed: draft from every one of its
tokens at once, then walk from anchor to anchor over what was accepted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Int

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.batches import BatchBuilder, SequenceBatch
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.methods.recipe import (
    AnyRecipe,
    draft_logits,
    tokens_before,
    with_weights,
)
from blockdraft_training.target import CompleteBatch, Frozen

# Rows of the head computed at once: logits of every slot of a long completion would be large.
_HEAD_ROWS = 512


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance of drafts on held-out completions."""

    acceptance_length: float  # τ, mean tokens per verification, the target's own included
    by_source: dict[str, float]  # τ for each source of prompts
    # Share of verifications that accepted at least this many tokens.
    per_position: tuple[float, ...]


def digest(prompt: Sequence[int] | Int[np.ndarray, " tokens"]) -> bytes:
    """Return the digest that decides whether the completions of a prompt are held out."""
    return sha256(np.asarray(prompt, "<i4").tobytes()).digest()


def split_validation(rows: Sequence[CorpusRow], count: int) -> tuple[list[int], list[int]]:
    """Return the row numbers to train on and those held out, spread over the sources.

    A digest of the prompt decides which rows of a source are held out, so completions to one prompt
    are never split. Added rows change the choice: to compare with a drafter that was trained on
    fewer rows, hold out rows that neither drafter has seen.
    """
    by_source: dict[str, list[int]] = {}
    for number in sorted(range(len(rows)), key=lambda number: digest(rows[number].prompt)):
        by_source.setdefault(rows[number].source, []).append(number)
    held_out: set[int] = set()
    share = count / len(rows)
    for members in by_source.values():
        held_out.update(members[: round(share * len(members))])
    held_prompts = {rows[number].prompt for number in held_out}
    held_out.update(n for n in range(len(rows)) if rows[n].prompt in held_prompts)
    return [n for n in range(len(rows)) if n not in held_out], sorted(held_out)


def drafted_tokens(
    recipe: AnyRecipe,
    model: DraftModel,
    frozen: Frozen,
    batch: SequenceBatch,
    anchors: Int[Array, "batch blocks"],
) -> Int[Array, "batch blocks slots"]:
    """Return the drafter's token for every slot, as a target id.

    Each is drafted after the true tokens before it; see `tokens_before`.
    """
    hidden = recipe.draft(model, frozen.embedding, batch, anchors)
    before = tokens_before(batch.token_ids, anchors, hidden.shape[2])
    rows = hidden.reshape(-1, hidden.shape[-1])
    padding = -len(rows) % _HEAD_ROWS
    parts = (
        jnp.pad(rows, ((0, padding), (0, 0))).reshape(-1, _HEAD_ROWS, rows.shape[-1]),
        jnp.pad(before.reshape(-1), (0, padding)).reshape(-1, _HEAD_ROWS),
    )
    best = jax.lax.map(
        lambda part: jnp.argmax(draft_logits(model, frozen.head, *part), axis=-1), parts
    )
    drafted: Array = frozen.hot.ids[best.reshape(-1)[: len(rows)]].reshape(hidden.shape[:-1])
    return drafted


def walk(matches: Bool[np.ndarray, "anchors slots"], completion_tokens: int) -> list[int]:
    """Return the tokens gained by each verification of a completion.

    `matches[a, s]` says whether slot s was drafted right with token a as the anchor. Blocks that
    reach beyond the completion are left out.
    """
    slots = matches.shape[1]
    gained: list[int] = []
    anchor = 0
    while anchor + slots < completion_tokens:
        accepted = int(np.cumprod(matches[anchor]).sum())
        gained.append(accepted + 1)
        anchor += accepted + 1
    return gained


def make_matches(
    recipe: AnyRecipe, model: DraftModel, *, complete: CompleteBatch, dtype: DTypeLike
) -> Callable[[Any, Frozen, SequenceBatch, int], Bool[Array, "anchors slots"]]:
    """Return a function that drafts from every token of a completion and compares the drafts.

    It takes weights, target, a batch of one row and the completion's padded length, and is compiled
    for each shape. The arguments are those of `make_gradients`.
    """
    rebuilt = with_weights(model)
    slots = model.config.block_size - 1

    @partial(jax.jit, static_argnums=3)
    def matches_of(
        params: Any, frozen: Frozen, batch: SequenceBatch, completion_length: int
    ) -> Bool[Array, "anchors slots"]:
        batch = complete(frozen.decoder, batch)
        drafter = rebuilt(params, dtype)
        anchors = batch.starts[:, None] + jnp.arange(completion_length)[None, :]
        drafted = drafted_tokens(recipe, drafter, frozen, batch, anchors)
        positions = anchors[..., None] + 1 + jnp.arange(slots)[None, None, :]
        clipped = jnp.minimum(positions, batch.token_ids.shape[1] - 1)
        true = batch.token_ids[0][clipped]
        matches: Array = ((drafted == true) & (positions < batch.ends[:, None, None]))[0]
        return matches

    return matches_of


def make_validation(
    recipe: AnyRecipe,
    model: DraftModel,
    builder: BatchBuilder,
    numbers: Sequence[int],
    *,
    complete: CompleteBatch,
    dtype: DTypeLike,
) -> Callable[[Any, Frozen], Acceptance | None]:
    """Return a function that measures acceptance on the greedy held-out rows, or else on all."""
    rows = builder.rows
    greedy = [number for number in numbers if rows[number].temperature == 0]
    used = greedy or list(numbers)
    slots = model.config.block_size - 1
    matches_of = make_matches(recipe, model, complete=complete, dtype=dtype)

    def validate(params: Any, frozen: Frozen) -> Acceptance | None:
        gained: dict[str, list[int]] = {}
        for number in used:
            matches = np.asarray(
                matches_of(params, frozen, builder([number]), builder.completion_length)
            )
            walked = walk(matches, len(rows[number].response))
            gained.setdefault(rows[number].source, []).extend(walked)
        every = np.array([gain for gains in gained.values() for gain in gains])
        if not len(every):
            return None
        return Acceptance(
            float(every.mean()),
            {source: float(np.mean(gains)) for source, gains in gained.items() if gains},
            tuple(float((every > position).mean()) for position in range(1, slots + 1)),
        )

    return validate
