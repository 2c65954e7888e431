"""Curves of this machine, timed in rounds over all shapes."""

import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from blockdraft_aot.roofline import PUBLISHED, Roofline
from blockdraft_bench.kflat.curve import (
    TOLERANCE,
    Curve,
    StepShape,
    Timing,
    curve_table,
    curves_of,
    step_shapes,
)
from blockdraft_bench.provenance import Target, hardware
from blockdraft_bench.result import Result, bullets, draw, page
from blockdraft_bench.run import Run, sample_in_rounds
from blockdraft_bench.settings import KFlatSettings
from blockdraft_bench.statistics import percentiles
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.executables import keep_executables, require_devices
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

# For the roofline: sizes that take a CPU core some tenths of a second, and an accelerator no
# noticeable time.
MATRIX_SIZE = 1536
STREAM_SHAPE = (8192, 8192)


def measure(settings: KFlatSettings, run: Run) -> Result:
    """Time the steps, and say up to which K they are free."""
    keep_executables()
    require_devices()
    shapes = step_shapes(settings.batch, settings.context_tokens, settings.max_tokens)
    path = resolve_target(settings.target)
    target = Target.of(load_checkpoint_config(path))
    curves = measured_curves(path, shapes, settings, run)
    caption = (
        "Time of a verification step over K tokens, relative to one token a sequence. Target "
        f"{target}, medians of {settings.runs} runs; free means at most "
        f"{TOLERANCE:.0%} more."
    )
    facts = {"target": target, "curves": [curve.summary() for curve in curves]}
    explanations = bullets(f"{curve.name}: {curve.explain()}" for curve in curves)
    rows = [step for curve in curves for step in curve.steps]
    by = ["device", "model", "batch", "context_tokens"]
    figure = draw(rows, "tokens", "relative_to_one", by, log=True)
    return Result(facts, rows, page(caption, curve_table(curves), explanations), figure)


def measured_curves(
    target: Path, shapes: Sequence[StepShape], settings: KFlatSettings, run: Run
) -> list[Curve]:
    """Return the curves of this machine, timed in rounds so that its drift meets all alike."""
    dtype = serving_dtype(settings.dtype)
    starting = run.phase("loading and compiling")
    decoder, checkpoint = load_decoder(target, dtype=dtype)
    timer = StepTimer(decoder, shapes, dtype.name, starting.reach)
    timing = run.phase("timing", (len(shapes) + 1) * (settings.runs + 1))
    steps: Mapping[StepShape | None, Callable[[], float]] = {
        shape: functools.partial(timer.seconds, shape) for shape in shapes
    }
    probe = DeviceProbe(dtype)
    seconds = sample_in_rounds(
        {**steps, None: probe.sample}, settings.runs, timing.advance, uncounted=1
    )
    timings = {}
    for shape in shapes:
        low, middle, high = percentiles(seconds[shape], (25, 50, 75))
        timings[shape] = Timing(middle, (low, high))
    machine = hardware()
    return curves_of(
        checkpoint.config,
        timings,
        device=machine.accelerator or f"{machine.cpu}, {machine.cores} cores",
        bytes_per_weight=dtype.itemsize,
        roofline=probe.roofline(),
    )


class StepTimer:
    """The target with a cache that holds every shape, compiled for all of them."""

    def __init__(
        self,
        decoder: Decoder,
        shapes: Sequence[StepShape],
        dtype: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Compile."""
        config = engine_config(shapes, dtype)
        self._page_size = config.page_size
        self._vocab_size = decoder.config.vocab_size
        self._runner = ModelRunner(decoder, config)
        # Each sequence verifies all its tokens as one draft, so that all have logits.
        largest = max(shape.tokens_per_sequence for shape in shapes)
        self._runner.warm_up(NO_FEATURES, largest, progress)

    def seconds(self, shape: StepShape) -> float:
        """Run a step and return its wall time, packing and the wait for the device included."""
        return self._runner.run(self._rows(shape)).seconds

    def _rows(self, shape: StepShape) -> list[Row]:
        """Return a row for each sequence: an anchor after the context, then random drafts."""
        new = shape.tokens_per_sequence
        length = shape.context_tokens + new
        pages = -(-length // self._page_size)
        rng = random.Random(0)
        rows = []
        for index in range(shape.batch):
            request = GenerationRequest(str(index), (0,) * (shape.context_tokens + 1))
            sequence = TokenSequence(index, request, arrival_time=0.0)
            sequence.committed = shape.context_tokens
            sequence.pages = list(range(index * pages, (index + 1) * pages))
            tokens = tuple(rng.randrange(self._vocab_size) for _ in range(new))
            rows.append(Row(sequence, shape.context_tokens, tokens, draft_count=new - 1))
        return rows


def engine_config(shapes: Sequence[StepShape], dtype: str) -> EngineSettings:
    """Return the limits of an engine that runs all `shapes`."""
    page_size = EngineSettings().page_size
    lengths = {shape: shape.context_tokens + shape.tokens_per_sequence for shape in shapes}
    return EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=max(shape.batch for shape in shapes),
            max_step_tokens=max(shape.tokens for shape in shapes),
            max_context_tokens=max(lengths.values()),
        ),
        page_size=page_size,
        num_pages=max(shape.batch * -(-length // page_size) for shape, length in lengths.items()),
        dtype="bfloat16" if dtype == "bfloat16" else "float32",
        draft_policy="fixed",
    )


class DeviceProbe:
    """The roofline of the default device: published figures, or measured a little by `sample`.

    Peak arithmetic is a square matrix product of the element type; bandwidth is a maximum over the
    rows of a float32 matrix far larger than any cache. The fastest run counts, since a roofline is
    a bound.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        """Prepare; the published figures of a known accelerator need no measurement."""
        kind = jax.devices()[0].device_kind
        # The makers' figures are those of bfloat16.
        self._published = PUBLISHED.get(kind) if jnp.dtype(dtype) == jnp.bfloat16 else None
        self._flops_per_second: list[float] = []
        self._bytes_per_second: list[float] = []
        if self._published is not None:
            return
        square = jnp.ones((MATRIX_SIZE, MATRIX_SIZE), dtype)
        stream = jnp.ones(STREAM_SHAPE, jnp.float32)
        self._flops, self._bytes = 2 * MATRIX_SIZE**3, stream.nbytes
        self._multiply = functools.partial(jax.jit(jnp.matmul), square, square)
        self._read = functools.partial(jax.jit(functools.partial(jnp.max, axis=1)), stream)
        _seconds(self._multiply), _seconds(self._read)  # compiles

    def sample(self) -> float:
        """Measure once; return the seconds that took."""
        if self._published is not None:
            return 0.0
        multiplying, reading = _seconds(self._multiply), _seconds(self._read)
        self._flops_per_second.append(self._flops / multiplying)
        self._bytes_per_second.append(self._bytes / reading)
        return multiplying + reading

    def roofline(self) -> Roofline:
        """Return the figures; `sample` must have run."""
        if self._published is not None:
            return self._published
        return Roofline(max(self._flops_per_second), max(self._bytes_per_second), "measured")


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started
