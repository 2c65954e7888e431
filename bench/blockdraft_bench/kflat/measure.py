"""Timing the verifier's own compiled steps, in rounds over all shapes."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from blockdraft_bench.common.provenance import hardware
from blockdraft_bench.common.run import Run
from blockdraft_bench.common.statistics import percentiles
from blockdraft_bench.kflat.curve import Curve, Timing, curves_of
from blockdraft_bench.kflat.decoder_cost import StepShape
from blockdraft_bench.kflat.device_probe import DeviceProbe
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import load_decoder
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.scheduling.sequence import Sequence as DecodedSequence

Progress = Callable[[int, int], None]


def measured_curves(
    target: Path, shapes: Sequence[StepShape], runs: int, dtype_name: str, run: Run
) -> list[Curve]:
    """Return the curves of this machine."""
    dtype = serving_dtype(dtype_name)
    starting = run.phase("loading")
    decoder, checkpoint = load_decoder(target, dtype=dtype)
    starting.rename("compiling")
    timer = StepTimer(decoder, shapes, dtype.name, starting.reach)
    timing = run.phase("timing", len(shapes) * (runs + 1))
    probe = DeviceProbe(dtype)
    seconds = time_in_rounds(timer, shapes, runs, probe, on_step=timing.advance)
    timings = {}
    for shape in shapes:
        low, middle, high = percentiles(seconds[shape], (25, 50, 75))
        timings[shape] = Timing(middle, (low, high))
    machine = hardware()
    return curves_of(
        checkpoint.config,
        timings,
        device=machine.accelerator or f"{machine.cpu}, {machine.cores} cores",
        modelled=False,
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
        progress: Progress = lambda done, total: None,
    ) -> None:
        """Compile."""
        config = engine_config(shapes, dtype)
        self._page_size = config.page_size
        self._vocab_size = decoder.config.vocab_size
        self._runner = ModelRunner(decoder, config)
        # Each sequence verifies all its tokens as one proposal, so that all have logits.
        largest = max(shape.tokens_per_sequence for shape in shapes)
        self._runner.warm_up(NO_FEATURES, largest, progress)

    def seconds(self, shape: StepShape) -> float:
        """Run a step and return its wall time, packing and the wait for the device included."""
        return self._runner.run(self._rows(shape)).seconds

    def _rows(self, shape: StepShape) -> list[Row]:
        """Return one row a sequence: an anchor after the context, then random drafts."""
        new = shape.tokens_per_sequence
        length = shape.context_tokens + new
        pages = -(-length // self._page_size)
        rng = random.Random(0)
        rows = []
        for index in range(shape.batch):
            request = GenerationRequest(str(index), (0,) * (shape.context_tokens + 1))
            sequence = DecodedSequence(index, request, arrival_time=0.0)
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


def time_in_rounds(
    timer: StepTimer,
    shapes: Sequence[StepShape],
    runs: int,
    probe: DeviceProbe,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> dict[StepShape, list[float]]:
    """Time every shape once a round, so that drift of the machine meets all of them alike.

    Args:
        timer: Runs the steps.
        shapes: What to time.
        runs: Rounds that count; one before them does not.
        probe: Measures the device once a round.
        on_step: Called after every step.

    Returns:
        The seconds of each shape's runs.
    """
    seconds: dict[StepShape, list[float]] = {shape: [] for shape in shapes}
    rng = random.Random(0)
    for turn in range(runs + 1):
        # In another order each time: what ran just before leaves its traces in the caches.
        for shape in rng.sample(list(shapes), len(shapes)):
            taken = timer.seconds(shape)
            if turn:
                seconds[shape].append(taken)
            on_step()
        probe.sample()
    return seconds
