"""A tiny target on disk with a corpus of its greedy completions, and short training runs on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_checkpoint_config
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.feature_cache import FeatureCache
from blockdraft_training.loop.records import Reading, Reporter
from blockdraft_training.settings import DFlashSettings, TrainSettings
from blockdraft_training.target import FeatureSpec

ROWS, PROMPT, LENGTH = 64, 8, 64
# Of the short runs.
SHORT_ROWS, SHORT_LENGTH = 16, 32
WORDS, MONOTONY = 32, 32


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what it answered."""

    target: Path  # directory of the target
    decoder: Decoder  # the same, loaded
    rows: Sequence[
        CorpusRow
    ]  # greedy completions to random prompts, `LENGTH` tokens with the prompt
    corpus: Path  # file of the rows
    short: Path  # file of the first `SHORT_ROWS` rows, cut to `SHORT_LENGTH` tokens

    @property
    def checkpoint(self) -> Checkpoint:
        """The target's shape and fingerprint."""
        return load_checkpoint_config(self.target)

    def settings(self, output: Path, **changes: Any) -> DFlashSettings:
        """Return the settings of a run of a few steps on the short rows."""
        fields: dict[str, Any] = {
            "corpus": (self.short,),
            "output": output,
            "target": str(self.target),
            "feature_layers": (1, 2),
            "layers": 2,
            "block_size": 4,
            "steps": 4,
            "batch_size": 4,
            "blocks_per_sequence": 4,
            "learning_rate": 3e-3,
            "hot_vocabulary": 64,
            "validation_rows": 2,
            "checkpoint_every": 2,
            "report_every": 1,
        }
        return DFlashSettings(**{**fields, **changes})

    def eagle3(self, output: Path, **changes: Any) -> TrainSettings:
        """Return the same, as far as they are not DFlash's own."""
        settings = self.settings(output, **changes)
        shared = {field.name: getattr(settings, field.name) for field in fields(TrainSettings)}
        return TrainSettings(**shared)

    def kept_features(
        self, run: Path, rows: Sequence[CorpusRow]
    ) -> tuple[FeatureCache, list[np.ndarray]]:
        """Return what a run has kept, and the features of each row."""
        fingerprint = self.checkpoint.fingerprint
        spec = FeatureSpec((1, 2))
        cache = FeatureCache(run / "features", rows, spec, hidden_size=32, fingerprint=fingerprint)
        return cache, [cache.features_of(*ends) for ends in pairwise(cache.offsets.tolist())]


def make_pair(directory: Path) -> Pair:
    """Write a target and its corpus."""
    decoder = monotonous_decoder()
    write_hf_checkpoint(decoder, directory / "target")
    rows = greedy_rows(decoder, ROWS, LENGTH, seed=0)
    short = [
        CorpusRow(row.id, row.source, 0.0, row.prompt, row.response[: SHORT_LENGTH - PROMPT])
        for row in rows[:SHORT_ROWS]
    ]
    corpus = write_rows(rows, directory / "corpus.jsonl")
    return Pair(
        directory / "target", decoder, rows, corpus, write_rows(short, directory / "short.jsonl")
    )


def monotonous_decoder() -> Decoder:
    """Return a random target that minds its last token most, and knows few words.

    Its completions are soon nearly periodic: a drafter as tiny can learn them in seconds.
    """
    decoder = random_decoder(tiny_config("qwen3", num_layers=4))
    for layer in decoder.layers:
        for last in (layer.attention.output, layer.mlp.down):
            last.weight[...] = last.weight[...] / MONOTONY
    assert decoder.head is not None
    decoder.head.weight[...] = decoder.head.weight[...].at[WORDS:].set(0.0)
    return decoder


def write_rows(rows: Sequence[CorpusRow], path: Path) -> Path:
    """Write a corpus without a manifest."""
    path.write_text("".join(row.to_json() + "\n" for row in rows), encoding="utf-8")
    return path


def greedy_rows(decoder: Decoder, count: int, length: int, *, seed: int) -> list[CorpusRow]:
    """Return the target's greedy completions to random prompts of two sources."""
    most = min(256, decoder.config.vocab_size)
    prompts = np.random.default_rng(seed).integers(0, most, (count, PROMPT))
    ids = np.zeros((count, length), np.int32)
    ids[:, :PROMPT] = prompts
    texts: list[list[int]] = np.asarray(_continued(*nnx.split(decoder), jnp.asarray(ids))).tolist()
    return [
        CorpusRow(
            f"r{number}",
            ("math", "code")[number % 2],
            0.0,
            tuple(text[:PROMPT]),
            tuple(text[PROMPT:]),
        )
        for number, text in enumerate(texts)
    ]


@partial(jax.jit, static_argnums=0)
def _continued(graph: nnx.GraphDef[Decoder], state: Any, ids: jax.Array) -> jax.Array:
    decoder = nnx.merge(graph, state)
    count, length = ids.shape
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), count)
    caches = [None] * decoder.config.num_layers

    def extend(position: jax.Array, ids: jax.Array) -> jax.Array:
        output = decoder(ids.reshape(-1), positions, caches, DenseAttend(count, length))
        hidden = output.hidden.reshape(count, length, -1)[:, position - 1]
        chosen = jnp.argmax(decoder.logits(hidden), axis=-1).astype(jnp.int32)
        return ids.at[:, position].set(chosen)

    continued: jax.Array = jax.lax.fori_loop(PROMPT, length, extend, ids)
    return continued


def reporter(reading: Callable[[Reading], None] = lambda reading: None) -> Reporter:
    """Return a reporter that only passes readings on."""
    return Reporter(lambda done, total: None, lambda read, steps: reading(read))
