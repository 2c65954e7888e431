"""The compiled steps of the target: compile every shape beforehand, then only run."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.diffusion import Diffusion
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.processor import usable_cores
from blockdraft_models.words import Words, to_words
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.buckets import Bucket, all_buckets, bucket_for, least_step_tokens
from blockdraft_verifier.device.cache import LayeredCache, allocate_cache
from blockdraft_verifier.device.feature_form import (
    NO_FEATURES,
    FeatureForm,
    compilation_words,
    read_compilation,
    split,
)
from blockdraft_verifier.device.feeding import lower_feed, takes_chosen_tokens
from blockdraft_verifier.device.log_probs import split_log_probs
from blockdraft_verifier.device.packing import StepInputs, pack, reading
from blockdraft_verifier.device.sizes import cache_layout
from blockdraft_verifier.device.states import lower_copies
from blockdraft_verifier.device.step import StepOutputs, TargetStep
from blockdraft_verifier.device.step_runner import LaunchedStep, MeasuredSteps, StepResult
from blockdraft_verifier.device.token_limits import LimitsPacker, TokenLimits, no_limits
from blockdraft_verifier.scheduling.canvas import CanvasChoices
from blockdraft_verifier.scheduling.row import Row, RowResult
from blockdraft_verifier.slice.mirror import StepLeader, byte_count, from_bytes

logger = logging.getLogger(__name__)

TIMED_RUNS = 2
# Long enough to be told from jitter, short enough not to hold the start up.
TIMED_CONTEXT_TOKENS = 512


class ModelRunner:
    """Holds weights and cache on the device and runs compiled steps over them.

    Attributes:
        buckets: The compiled shapes, smallest first; `run` takes one that is served.
        max_block: Most tokens of a decoding row that they were compiled for.
        launching: Entered to launch a step, where another thread launches programs too.
    """

    # XLA compiles outside the interpreter lock, so as many at a time keep all cores busy.
    _compilers = usable_cores()

    def __init__(
        self,
        decoder: Decoder,
        settings: EngineSettings,
        mesh: Mesh | None = None,
        leader: StepLeader | None = None,
        kept_programs: KeptPrograms | None = None,
    ) -> None:
        """Allocate the cache on `mesh`, where the weights lie; `warm_up` must follow before `run`.

        `leader` has the other processes of a slice do the same; it is None in those others. Steps
        that were compiled before may be in `kept_programs`.
        """
        self._leader, self._kept_programs = leader, kept_programs
        self._graph, self._weights = nnx.split(decoder)
        self._leaves = jax.tree.leaves(self._weights)
        self.model, self.adapter_ranks = decoder.config, decoder.adapter_ranks
        self.dtype = decoder.dtype
        self.layout = cache_layout(decoder, settings, mesh)
        states = self.layout.states
        self.settings = settings
        if states is not None:
            self.settings = replace(
                settings, rollback_tokens=states.most_block, state_chunk_tokens=CHUNK_TOKENS
            )
        if self.model.diffusion is not None:
            self.settings = replace(settings, prompt_lookup=False)
        # A guest's steps use the same: each consumes it and leaves another in its place.
        self._cache = [allocate_cache(self.layout)]
        self._max_pages = -(-settings.scheduler.max_context_tokens // settings.page_size)
        self.buckets: tuple[Bucket, ...] = ()
        self._served: tuple[Bucket, ...] = ()
        self._steps: dict[Bucket, Any] = {}
        self._feeds: dict[Bucket, Any] = {}
        self._copies: Any = None
        if states is not None:
            copies = functools.partial(lower_copies, states)
            self._copies = self._program(("copies", states), copies)
        # The shape of the last step, and the tokens that it has chosen.
        self._last: tuple[Bucket, jax.Array] | None = None
        self._last_read = 0.0
        # On the devices already, for the many steps without biases and masks; by rows and choices.
        self._no_limits: dict[tuple[int, int], TokenLimits] = {}
        self._limits = LimitsPacker(decoder.config.vocab_size)
        self._features = NO_FEATURES
        self.max_block = 0
        self.launching: AbstractContextManager[Any] = nullcontext()

    @property
    def diffusion(self) -> Diffusion | None:
        """How the target denoises; None if it decodes token after token."""
        return self.model.diffusion

    @property
    def feature_width(self) -> int:
        """Elements of one feature; 0 when nothing is captured."""
        return self._features.width(self.model.hidden_size)

    def compiled_for(self, features: FeatureForm, max_block: int) -> bool:
        """Return whether `warm_up` has compiled for these features and blocks of this size."""
        return self._features == features and self.max_block >= max_block

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda count, total: None,
    ) -> MeasuredSteps:
        """Compile the step for every bucket and time each one; see `StepRunner`."""
        if self._leader is not None:
            self._leader.compile(compilation_words(features, max_block))
        self.compile(features, max_block, progress, run=self._leader is None)
        if self._leader is not None:
            self._leader.wait_compiled()
        seconds = {bucket: self._time(bucket, 0) for bucket in self.buckets}
        return MeasuredSteps(seconds, self._time_context(seconds))

    def compile(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda count, total: None,
        *,
        run: bool = False,
    ) -> None:
        """Compile the step for every bucket, decoding rows having at most `max_block` tokens.

        With `run` each is run once while another is compiled, because the first run takes longer:
        on CPU by 0.3 s, on one core.
        """
        limits = self.settings.scheduler
        self._features, self.max_block = features.placed(self.layout.mesh), max_block
        least = max(least_step_tokens(jax.default_backend()), self.model.canvas_grain)
        self.buckets = all_buckets(limits.max_sequences, limits.max_step_tokens, max_block, least)
        self._served = self.buckets
        step = TargetStep(self._graph, self.layout, self._max_pages, self._features, max_block)
        buckets_by_shape = {(bucket.rows, bucket.choices): bucket for bucket in self.buckets}
        self._no_limits = {
            shape: jax.device_put(no_limits(bucket, self.model.vocab_size), self.layout.replicated)
            for shape, bucket in buckets_by_shape.items()
        }
        self._steps, self._feeds = {}, {}
        one_at_a_time = threading.Lock()

        def prepare(bucket: Bucket) -> None:
            self._steps[bucket] = self._compile(step, bucket)
            feed = bucket, len(to_words(self._pack((), bucket))), self.layout.replicated
            self._feeds[bucket] = self._program(
                ("feed", *feed), functools.partial(lower_feed, *feed)
            )
            if run:
                with one_at_a_time:
                    self._run_padding(bucket, self._timed_context)

        with ThreadPoolExecutor(self._compilers) as executor:
            for count, _ in enumerate(executor.map(prepare, self.buckets), start=1):
                progress(count, len(self.buckets))

    def serve_only(self, buckets: Collection[Bucket]) -> None:
        """Pad every step to one of these shapes, which must hold the largest.

        The others stay compiled: the processes of a slice know shapes by their place.
        """
        self._served = tuple(sorted(buckets))

    def compile_mirrored(self, words: bytes) -> None:
        """Compile the steps that the leader of the slice compiles."""
        self.compile(*read_compilation(words))

    def take_steps(self, runner: "ModelRunner") -> None:
        """Take over the compiled steps of another runner over the same cache."""
        self._features, self.max_block = runner._features, runner.max_block
        self.buckets, self._served = runner.buckets, runner._served
        self._steps, self._no_limits = runner._steps, runner._no_limits
        self._feeds = runner._feeds

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        """Run one step over `rows`, in the smallest shape that holds them."""
        return self._launch(self._bucket(rows), rows)(meanwhile)

    def launch_ahead(self, rows: Sequence[Row]) -> LaunchedStep | None:
        """Launch a step over `rows`; see `StepRunner`."""
        bucket = self._bucket(rows)
        if self._last is None or bucket != self._last[0]:
            return None
        return self._launch(bucket, rows)

    def _launch(self, bucket: Bucket, rows: Sequence[Row]) -> LaunchedStep:
        started = time.perf_counter()
        outputs = self.run_in(bucket, rows)
        for array in jax.tree.leaves(_verdict(outputs)):
            array.copy_to_host_async()
        return functools.partial(self._read, rows, outputs, started)

    def _read(
        self,
        rows: Sequence[Row],
        outputs: StepOutputs,
        started: float,
        meanwhile: Callable[[], None],
    ) -> StepResult:
        meanwhile()
        verdict = jax.tree.map(np.ndarray.tolist, jax.device_get(_verdict(outputs)))
        accepted, bonus, choices, denoised = verdict
        # A step that was launched ahead began when the one before it had ended.
        ended = time.perf_counter()
        seconds, self._last_read = ended - max(started, self._last_read), ended
        results, first = [], 0
        for row, right, token in zip(rows, accepted, bonus, strict=False):
            first += row.choice_count
            after_rejected = choices[first - row.draft_count + right : first]
            result = RowResult(right, token, tuple(after_rejected))
            if row.canvas_count:
                part = slice(first - row.canvas_count, first)
                likeliest = denoised.likeliest[part] if denoised.likeliest else ()
                canvas = CanvasChoices(choices[part], denoised.scores[part], likeliest)
                result = replace(result, canvas=canvas)
            results.append(result)
        final = [
            row.known_count + result.accepted for row, result in zip(rows, results, strict=True)
        ]
        log_probs, prompt_log_probs = split_log_probs(rows, results, outputs)
        features = split(outputs.features, final)
        return StepResult(results, features, log_probs, seconds, prompt_log_probs)

    def run_in(self, bucket: Bucket, rows: Sequence[Row]) -> StepOutputs:
        """Run one step over `rows` in a shape that need not be the smallest that holds them."""
        inputs = self._pack(rows, bucket)
        biases, masks, _ = inputs.rules_wanted
        limits = self._limits.pack(rows, bucket) if biases or masks else None
        return self._execute(bucket, to_words(inputs), limits)

    def read_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        """Return the keys and values in some pages, layer by layer; for the self-test.

        Of a slice of several hosts no process can read them: there are none then.
        """
        if jax.process_count() > 1:
            return []
        index = np.asarray(pages, np.int32)
        layers: list[np.ndarray] = []
        for cache in self._cache[0].layers:
            stack = cache.pages if isinstance(cache, LayeredCache) else cache
            firsts = np.arange(0, len(stack), self.layout.num_pages, dtype=np.int32)
            layers += list(np.asarray(stack[firsts[:, None] + index]))
        return layers

    def _bucket(self, rows: Sequence[Row]) -> Bucket:
        return bucket_for(self._served, len(rows), sum(len(row.token_ids) for row in rows))

    def run_mirrored(self, step: int, inputs: memoryview) -> None:
        """Run a step as the leader of the slice does, and wait for its end."""
        bucket = self.buckets[step]
        like = to_words(self._pack((), bucket)), no_limits(bucket, self.model.vocab_size)
        # The limits come only where there are any.
        sent = from_bytes(inputs, like if len(inputs) == byte_count(like) else like[:1])
        outputs = self._execute(bucket, *sent)
        jax.block_until_ready(outputs.bonus)

    def _compile(self, step: TargetStep, bucket: Bucket) -> Any:
        lower = functools.partial(step.lower, self._weights, bucket)
        return self._program(step.described(self._weights, bucket), lower)

    def _program(self, made_from: object, lower: Callable[[], jax.stages.Lowered]) -> Any:
        """Compile a program, unless an earlier start has kept it."""
        if self._kept_programs is None:
            return lower().compile()
        return self._kept_programs.compiled(made_from, lower, self.layout.mesh)

    def _pack(self, rows: Sequence[Row], bucket: Bucket) -> StepInputs:
        return pack(
            rows,
            bucket,
            page_size=self.settings.page_size,
            num_pages=self.layout.num_pages,
            max_pages=self._max_pages,
            states=self.layout.states,
            has_adapters=bool(self.adapter_ranks),
            has_noise=self.layout.signals is not None,
        )

    def _execute(
        self, bucket: Bucket, words: Words, limits: TokenLimits | None = None
    ) -> StepOutputs:
        if self._leader is not None:
            self._leader.run(self.buckets.index(bucket), (words, limits))
        outputs: StepOutputs
        states = self.layout.states
        with self.launching:
            copies = None if states is None else states.copies_in(words)
            if copies is not None:
                cache = self._cache[0]
                copied = self._copies(cache.states, jax.device_put(copies, self.layout.replicated))
                self._cache[0] = cache._replace(states=copied)
            if self._last is not None and takes_chosen_tokens(words, bucket):
                words = self._feeds[bucket](words, self._last[1])
            outputs, self._cache[0] = self._steps[bucket](
                self._leaves,
                self._features.projection,
                self._cache[0],
                words,
                self._no_limits[bucket.rows, bucket.choices] if limits is None else limits,
            )
        self._last = bucket, outputs.bonus
        return outputs

    @property
    def _timed_context(self) -> int:
        return min(TIMED_CONTEXT_TOKENS, self.settings.scheduler.max_context_tokens)

    def _time_context(self, seconds: Mapping[Bucket, float]) -> dict[Bucket, float]:
        """Return the seconds that each token of context adds to a step of each bucket.

        One row reads it, so of the shapes with as many tokens only the one of fewest rows is timed.
        """
        context = self._timed_context
        narrowest = {bucket.tokens: bucket for bucket in reversed(self.buckets)}
        by_tokens = {
            tokens: max(0.0, self._time(bucket, context) - seconds[bucket]) / context
            for tokens, bucket in narrowest.items()
        }
        return {bucket: by_tokens[bucket.tokens] for bucket in self.buckets}

    def _time(self, bucket: Bucket, context: int) -> float:
        """Return the seconds of a step whose tokens read so much context.

        Without context they are the least of two, because on a slice the first is the step's first
        run.
        """
        runs = 1 if context else TIMED_RUNS
        return min(self._run_padding(bucket, context) for _ in range(runs))

    def _run_padding(self, bucket: Bucket, context: int) -> float:
        """Run a step of padding but for its attention, which writes nothing to the cache.

        Return its seconds.
        """
        inputs = self._pack((), bucket)
        inputs = inputs._replace(batch=reading(inputs.batch, context))
        started = time.perf_counter()
        jax.block_until_ready(self._execute(bucket, to_words(inputs)).bonus)
        return time.perf_counter() - started


def _verdict(outputs: StepOutputs) -> tuple[Any, ...]:
    """Return the outputs that the host reads of every step."""
    return outputs.accepted, outputs.bonus, outputs.choices, outputs.denoised
