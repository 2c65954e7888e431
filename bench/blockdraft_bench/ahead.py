"""How often the outcome of a verification is foreseen, so that a draft could be made ahead of it.

A drafter that drafts while the target verifies has to guess how many of its tokens are accepted,
and which token the target puts after them (speculative speculative decoding, arXiv 2603.03251).
Here the default target decodes prompts plainly. Then its EAGLE-3 drafter, which goes on from its
own hidden states, ranks the target's choice at every place of a draft from every position. A choice
of rank 0 is accepted; where one is not, the drafter's own first choice is ruled out.

Run it as `python -m blockdraft_bench.ahead --datasets-dir FOLDER`; it needs no service.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from prometheus_client import CollectorRegistry

from blockdraft_bench.datasets import TEST_SETS, choose_samples, read_datasets
from blockdraft_bench.prompts import chat_prompt
from blockdraft_drafter.checkpoint import load_drafter
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_drafter.sources import find_checkpoint
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import gumbel_noise, seed_words
from blockdraft_models.sampling_options import Sampling
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.process import DEFAULT_TARGET
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.eagle3 import draft_chains
from blockdraft_training.methods.recipe import draft_logits, tokens_before
from blockdraft_training.target import FeatureSpec, target_pass
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest

DRAFT_LENGTH = 7
# A draft made ahead begins after at most all tokens of the one before it and one more.
_PLACES = 2 * DRAFT_LENGTH + 1
_PROMPT_TOKENS, _OUTPUT_TOKENS = 192, 64
_OUTCOMES = (1, 4, 8, 16, 32)
# Of a choice that is not in the draft vocabulary.
_NEVER = 1 << 20
# Rows whose logits are ranked at once.
_ROWS = 256

Ranks = Int[np.ndarray, "positions places"]


@dataclass(slots=True)
class PlainText:
    """A completion by plain decoding."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: list[int]


def accepted(ranks: Int[np.ndarray, " places"]) -> int:
    """Return how many tokens of a draft are accepted that begins at the first of these places."""
    wrong = np.flatnonzero(ranks[:DRAFT_LENGTH])
    return int(wrong[0]) if len(wrong) else DRAFT_LENGTH


def outcomes(ranks: Ranks) -> Iterator[tuple[int, int, int]]:
    """Yield for each verification its position, accepted tokens, and the rank of the next one."""
    position = 0
    while position + _PLACES < len(ranks):
        count = accepted(ranks[position])
        rank = int(ranks[position, count])
        yield position, count, rank - 1 if count < DRAFT_LENGTH else rank
        position += count + 1


def likeliest(seen: Counter[tuple[int, int]], outcome_count: int) -> list[int]:
    """Return how many next tokens to prepare for each number of accepted tokens."""
    prepared = [0] * (DRAFT_LENGTH + 1)
    for _ in range(outcome_count):
        best = max(range(len(prepared)), key=lambda count: seen[count, prepared[count]])
        prepared[best] += 1
    return prepared


def ahead_and_fresh(ranks: Ranks, prepared: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield tokens gained by a draft ahead and by a fresh one, where the outcome was prepared."""
    for position, count, rank in outcomes(ranks):
        if rank < prepared[count]:
            ahead, fresh = ranks[position, count + 1 :], ranks[position + count + 1]
            yield accepted(ahead) + 1, accepted(fresh) + 1


def table(ranks: Sequence[Ranks]) -> str:
    """Return the share of outcomes foreseen and the gain of drafts, by the number prepared."""
    rounds = [outcome for of_one in ranks for outcome in outcomes(of_one)]
    seen = Counter((count, rank) for _, count, rank in rounds)
    lines = [f"{len(rounds)} verifications, {1 + statistics.mean(r[1] for r in rounds):.2f} tokens"]
    for outcome_count in _OUTCOMES:
        prepared = likeliest(seen, outcome_count)
        pairs = [pair for of_one in ranks for pair in ahead_and_fresh(of_one, prepared)]
        ahead, fresh = map(statistics.mean, zip(*pairs, strict=True))
        share = len(pairs) / len(rounds)
        gains = f"{ahead:.2f} tokens by drafts ahead, {fresh:.2f} by fresh ones"
        lines.append(f"{outcome_count:3} prepared: {share:.0%} foreseen, {gains}")
    return "\n".join(lines)


def _decode(decoder: Decoder, completions: Sequence[PlainText], stops: frozenset[int]) -> None:
    scheduler = SchedulerSettings(max_context_tokens=512)
    settings = EngineSettings(scheduler=scheduler, num_pages=1024, prompt_lookup=False)
    runner = ModelRunner(decoder, settings)
    metrics = VerifierMetrics(CollectorRegistry())
    engine = Engine(runner, settings, None, decoder.config.vocab_size, metrics)
    engine.warm_up()
    for item in completions:
        request = GenerationRequest(
            "ahead",
            item.prompt,
            sampling=item.sampling,
            max_output_tokens=_OUTPUT_TOKENS,
            stop_token_ids=stops,
        )
        engine.submit(request, partial(_add, item.tokens))
    while engine.step():
        pass


def _add(tokens: list[int], event: TokensGained) -> None:
    tokens.extend(event.token_ids)


def _rank_function(decoder: Decoder, model: Eagle3, draft_ids: np.ndarray | None) -> Any:
    """Return the compiled function from tokens, positions, noise and temperature to ranks."""
    layers = tuple(model.config.target_layer_ids)
    model.config = replace(model.config, block_size=_PLACES + 1)
    target_graph, target_state = nnx.split(decoder)
    drafter_graph, drafter_state = nnx.split(model)
    ids = np.arange(decoder.config.vocab_size) if draft_ids is None else np.asarray(draft_ids)
    draft_id_of = np.full(decoder.config.vocab_size, -1, np.int32)
    draft_id_of[ids] = np.arange(len(ids))

    @jax.jit
    def ranks(
        states: tuple[Any, Any],
        token_ids: Int[Array, "1 length"],
        anchors: Int[Array, "1 positions"],
        words: Int[Array, "1 2"],
        temperature: Float[Array, ""],
    ) -> Int[Array, "positions places"]:
        target = nnx.merge(target_graph, states[0])
        drafter = nnx.merge(drafter_graph, states[1])
        spec = FeatureSpec(layers, 1)
        features, _, _ = target_pass(target, token_ids, jnp.ones(1, jnp.int32), 1, spec)
        none = jnp.zeros((*token_ids.shape, 0))
        zero = jnp.zeros(1, jnp.int32)
        batch = SequenceBatch(token_ids, zero, zero, features, none.astype(jnp.int32), none)
        hidden = draft_chains(drafter, target.embedding.table[...], batch, anchors)
        slots = hidden.shape[2]
        positions = (anchors[..., None] + 1 + jnp.arange(slots)[None, None, :]).reshape(-1)
        choices = jnp.take(token_ids[0], jnp.minimum(positions, token_ids.shape[1] - 1))
        before = tokens_before(token_ids, anchors, slots).reshape(-1)
        head = target.embedding.table[...][jnp.asarray(ids)]

        def rank(row: tuple[Array, Array, Array, Array]) -> Array:
            hidden, before, position, choice = row
            logits = draft_logits(drafter, head, hidden, before)
            noise = gumbel_noise(
                jnp.broadcast_to(words, (len(position), 2)), position, jnp.asarray(ids)
            )
            logits = jnp.where(temperature > 0, logits + noise * temperature, logits)
            draft_id = jnp.asarray(draft_id_of)[choice]
            score = jnp.take_along_axis(logits, jnp.maximum(draft_id, 0)[:, None], axis=1)
            preferred: Array = (logits > score).sum(axis=1)
            return jnp.where(draft_id < 0, _NEVER, preferred)

        rows = hidden.reshape(-1, hidden.shape[-1]), before, positions, choices
        padding = -len(positions) % _ROWS
        blocks = jax.tree.map(
            lambda x: jnp.pad(x, ((0, padding), *((0, 0),) * (x.ndim - 1))).reshape(
                -1, _ROWS, *x.shape[1:]
            ),
            rows,
        )
        flat: Array = jax.lax.map(rank, blocks).reshape(-1)
        return flat[: len(positions)].reshape(-1, slots)

    return partial(ranks, (target_state, drafter_state))


def main() -> None:
    """Measure, and print a table for each temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets-dir", type=Path, help="folder of the nine test sets")
    parser.add_argument("--samples", type=int, default=2, help="prompts of each set")
    args = parser.parse_args()
    path = resolve_target(DEFAULT_TARGET)
    tokenizer = load_tokenizer(path)
    decoder, checkpoint = load_decoder(path, dtype=jnp.bfloat16)
    completions = [
        PlainText(
            tuple(chat_prompt(sample.text, tokenizer, _PROMPT_TOKENS)),
            Sampling(temperature=temperature, seed=1),
            [],
        )
        for dataset in read_datasets(TEST_SETS, args.datasets_dir)
        for sample in choose_samples(dataset.samples, args.samples, 0)
        for temperature in (0.0, 1.0)
    ]
    _decode(decoder, completions, frozenset(tokenizer.eos_token_ids))
    folder = find_checkpoint("eagle3", checkpoint, target_spec=DEFAULT_TARGET)
    assert folder is not None
    drafter = load_drafter(EAGLE3, folder, checkpoint, dtype=jnp.bfloat16)
    rank = _rank_function(decoder, drafter.model, drafter.draft_ids)
    length = _PROMPT_TOKENS + _OUTPUT_TOKENS
    by_temperature: dict[float, list[Ranks]] = {}
    for item in completions:
        token_ids = np.zeros((1, length), np.int32)
        text = [*item.prompt, *item.tokens]
        token_ids[0, : len(text)] = text
        first = len(item.prompt) - 1
        anchors = first + np.arange(_OUTPUT_TOKENS, dtype=np.int32)[None]
        words = np.asarray(seed_words(item.sampling.seed))[None]
        temperature = item.sampling.temperature
        ranks = np.asarray(rank(token_ids, anchors, words, jnp.float32(temperature)))
        by_temperature.setdefault(temperature, []).append(ranks[: len(item.tokens)])
    for temperature, of_all in by_temperature.items():
        print(f"T = {temperature:g}: {table(of_all)}")


if __name__ == "__main__":
    main()
