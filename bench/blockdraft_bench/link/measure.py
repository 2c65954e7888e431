"""All points of the link: their processes, their streams, their round trips in rounds."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from blockdraft_bench.common.provenance import origin
from blockdraft_bench.common.rounds import UNCOUNTED_ROUNDS, sample_in_rounds
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.instant_drafter import InstantRoom
from blockdraft_bench.link.command import LinkSettings, TransportName
from blockdraft_bench.link.drafter_process import drafter_process
from blockdraft_bench.link.exchange import Exchange, Traffic
from blockdraft_bench.link.report import LinkReport, LinkTime, markdown
from blockdraft_bench.link.transports import WAYS
from blockdraft_verifier.device.step import FEATURE_DTYPE

# A multiple of the page size. Longer contexts would take more memory and no more time: a step reads
# the newest positions only.
CONTEXT_TOKENS = 128
# A sequence lasts for so many steps at least.
LEAST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """What tells points apart."""

    transport: TransportName
    width: int
    sequences: int


def measure_link(settings: LinkSettings, run: Run) -> Outcome:
    """Start the drafters, connect, measure, report.

    Raises:
        BenchError: If a drafter does not come up, or proposes less than it was asked for.
        grpc.RpcError: If a drafter cannot be reached.
    """
    report = LinkReport(
        **origin(run.commit), draft_length=settings.draft_length, runs=settings.runs
    )
    starting = run.phase("starting drafters")
    with (
        tempfile.TemporaryDirectory(prefix="blockdraft-") as folder,
        open_exchanges(settings, Path(folder)) as exchanges,
    ):
        starting.reach(1, 1)
        measures = {point: exchange.step for point, exchange in exchanges.items()}
        measuring = run.phase("measuring", len(measures) * (UNCOUNTED_ROUNDS + settings.runs))
        samples = sample_in_rounds(measures, settings.runs, measuring.advance)
    # Not before: there is nothing that an interrupted run could go on from.
    chosen = settings.transport, settings.width, settings.sequences, settings.rows
    run.identify(replace(report, command="", commit=None, versions={}), chosen)
    results = tuple(
        LinkTime.of(
            times,
            transport=point.transport,
            sequences=point.sequences,
            rows=settings.rows,
            width=point.width,
            bytes=point.sequences * settings.rows * point.width * FEATURE_DTYPE.itemsize,
        )
        for point, times in samples.items()
    )
    report = replace(report, results=results)
    return Outcome(report, markdown(report))


@contextlib.contextmanager
def open_exchanges(settings: LinkSettings, folder: Path) -> Iterator[Mapping[Point, Exchange]]:
    """Open a stream for every point; points of one way and one width share a drafter.

    Args:
        settings: Which points.
        folder: For sockets.

    Raises:
        BenchError: If a drafter does not come up.
        grpc.RpcError: If it cannot be reached.
    """
    context_tokens = max(CONTEXT_TOKENS, LEAST_STEPS * settings.rows)
    exchanges: dict[Point, Exchange] = {}
    with contextlib.ExitStack() as stack:
        for name in settings.transport:
            way = WAYS[name]
            for width in settings.width:
                room = InstantRoom(
                    width=width,
                    block_size=settings.draft_length + 1,
                    max_sequences=sum(settings.sequences),
                    max_context_tokens=context_tokens,
                )
                own = folder / f"{name}-{width}"
                own.mkdir()
                address = stack.enter_context(drafter_process(way.listen(own), room))
                for sequences in settings.sequences:
                    traffic = Traffic(
                        sequences, settings.rows, settings.draft_length, context_tokens
                    )
                    transport = stack.enter_context(way.connect(address, width))
                    exchanges[Point(name, width, sequences)] = Exchange(transport, traffic)
        yield exchanges
