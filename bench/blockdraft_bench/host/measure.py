"""All points of the engine's host time, in rounds."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from blockdraft_bench.common.provenance import origin
from blockdraft_bench.common.rounds import UNCOUNTED_ROUNDS, sample_in_rounds
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.in_process import InProcessTransport
from blockdraft_bench.engine.instant_drafter import InstantRoom, instant_drafter
from blockdraft_bench.engine.instant_runner import InstantRunner, acceptance_for
from blockdraft_bench.engine.loading import Capacity, engine_settings
from blockdraft_bench.engine.timed_link import TimedTransport
from blockdraft_bench.host.command import HostSettings
from blockdraft_bench.host.report import HostReport, HostTime, Mode, markdown
from blockdraft_bench.host.steady_engine import SteadyEngine

MODES: tuple[Mode, ...] = ("plain", "drafted")
# A sequence lasts for a few steps at least. Longer contexts would take more memory and next to no
# more time: a step touches the newest positions only.
CONTEXT_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Point:
    """What tells points apart."""

    mode: Mode
    sequences: int


def measure_host(settings: HostSettings, run: Run) -> Outcome:
    """Make the engines, measure, report.

    Raises:
        BenchError: If an engine drafts less than whole blocks.
    """
    report = HostReport(
        **origin(run.commit),
        width=settings.width,
        block_size=settings.block_size,
        accepted=settings.accepted,
        draft_policy=settings.draft_policy,
        runs=settings.runs,
    )
    starting = run.phase("filling engines")
    with open_engines(settings) as engines:
        starting.reach(1, 1)
        measures = {point: engine.step for point, engine in engines.items()}
        measuring = run.phase("measuring", len(measures) * (UNCOUNTED_ROUNDS + settings.runs))
        samples = sample_in_rounds(measures, settings.runs, measuring.advance)
    # Not before: there is nothing that an interrupted run could go on from.
    run.identify(replace(report, command="", commit=None, versions={}), settings.sequences)
    results = tuple(
        HostTime.of(point.mode, point.sequences, seconds) for point, seconds in samples.items()
    )
    report = replace(report, results=results)
    return Outcome(report, markdown(report))


@contextmanager
def open_engines(settings: HostSettings) -> Iterator[Mapping[Point, SteadyEngine]]:
    """Make an engine for every point, full of sequences that decode."""
    with ExitStack() as stack:
        engines = {}
        for mode in MODES:
            for sequences in settings.sequences:
                engine = steady_engine(settings, mode, sequences)
                engines[Point(mode, sequences)] = stack.enter_context(closing(engine))
        yield engines


def steady_engine(settings: HostSettings, mode: Mode, sequences: int) -> SteadyEngine:
    """Return an engine of which `sequences` sequences decode, in this mode."""
    block_size = settings.block_size
    context_tokens = CONTEXT_BLOCKS * block_size
    # The element type is that of a cache, of which there is none.
    capacity = Capacity(sequences, context_tokens, "float32")
    limits = engine_settings(capacity, block_size, settings.draft_policy)
    transport = None
    if mode == "drafted":
        room = InstantRoom(settings.width, block_size, sequences, context_tokens)
        transport = TimedTransport(InProcessTransport(instant_drafter(room)))
    acceptance = acceptance_for(float(settings.accepted), block_size - 1)
    return SteadyEngine(InstantRunner(limits, settings.width, acceptance), limits, transport)
