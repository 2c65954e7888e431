"""All points of the link: their processes, their streams, their round trips in rounds."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from blockdraft_bench.errors import BenchError
from blockdraft_bench.link.drafter import NO_TARGET, drafter_process
from blockdraft_bench.link.exchange import DRAFT_LENGTH, ROWS, Exchange, ExchangeTimes
from blockdraft_bench.result import Cell, Result, ResultRow, page, table
from blockdraft_bench.run import UNCOUNTED_ROUNDS, Run, sample_in_rounds
from blockdraft_bench.settings import LinkSettings, TransportName
from blockdraft_bench.statistics import percentiles
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_verifier.device.cache import FEATURE_DTYPE
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import SharedWriter, offer_shared_memory
from blockdraft_verifier.drafting.handshake import DrafterDescription, check_description
from blockdraft_verifier.drafting.link import (
    HANDSHAKE_TIMEOUT_SECONDS,
    DraftTransport,
    GrpcDraftTransport,
)


class Point(NamedTuple):
    """The transport, feature width and number of sequences of a measurement."""

    transport: TransportName
    width: int
    sequences: int


def measure(settings: LinkSettings, run: Run) -> Result:
    """Start the drafters, connect, measure."""
    starting = run.phase("starting drafters")
    with (
        tempfile.TemporaryDirectory(prefix="blockdraft-") as folder,
        open_exchanges(settings, Path(folder)) as exchanges,
    ):
        starting.reach(1, 1)
        measures = {point: exchange.step for point, exchange in exchanges.items()}
        measuring = run.phase("measuring", len(measures) * (UNCOUNTED_ROUNDS + settings.runs))
        samples = sample_in_rounds(measures, settings.runs, measuring.advance)
    rows = [row_of(point, times) for point, times in samples.items()]
    caption = (
        "The link between verifier and drafter, two processes without models: milliseconds of a "
        f"step, drafts of {DRAFT_LENGTH} tokens, medians of {settings.runs} round "
        "trips."
    )
    return Result({}, rows, page(caption, link_table(rows)), None)


def row_of(point: Point, times: Sequence[ExchangeTimes]) -> ResultRow:
    """Sum up the round trips of a point, in milliseconds; `bytes` are those of its features."""
    median, slow = percentiles([1e3 * trip.round_trip for trip in times], (50, 90))
    [verifier] = percentiles([1e3 * trip.verifier_host for trip in times], (50,))
    [drafter] = percentiles([1e3 * trip.drafter_host for trip in times], (50,))
    return {
        "transport": point.transport,
        "sequences": point.sequences,
        "rows": ROWS,
        "width": point.width,
        "bytes": point.sequences * ROWS * point.width * FEATURE_DTYPE.itemsize,
        "round_trip_ms": median,
        "round_trip_ms_p90": slow,
        "verifier_host_ms": verifier,
        "drafter_host_ms": drafter,
    }


def link_table(rows: Sequence[ResultRow]) -> str:
    """Return the rows as Markdown."""
    columns = {
        "Transport": "transport",
        "Width": "width",
        "Rows": "rows",
        "Sequences": "sequences",
        "Round trip": "round_trip_ms",
        "p90": "round_trip_ms_p90",
        "Verifier's host": "verifier_host_ms",
        "Drafter's host": "drafter_host_ms",
    }
    body: list[list[Cell]] = [
        [*(row[name] for name in columns.values()), row["bytes"] / 1e6] for row in rows
    ]
    return table([*columns, "MB"], body)


@contextlib.contextmanager
def open_exchanges(settings: LinkSettings, folder: Path) -> Iterator[Mapping[Point, Exchange]]:
    """Open a stream for every point; points of one way and one width share a drafter."""
    exchanges: dict[Point, Exchange] = {}
    with contextlib.ExitStack() as stack:
        for name in settings.transport:
            for width in settings.width:
                subfolder = folder / f"{name}-{width}"
                subfolder.mkdir()
                listen = "127.0.0.1:0" if name == "tcp" else f"unix:{subfolder / 'drafter.sock'}"
                address = stack.enter_context(
                    drafter_process(listen, width, sum(settings.sequences))
                )
                for sequences in settings.sequences:
                    shared = name == "shared-memory"
                    transport = stack.enter_context(over_grpc(address, width, shared=shared))
                    exchanges[Point(name, width, sequences)] = Exchange(transport, sequences)
        yield exchanges


@contextlib.contextmanager
def over_grpc(address: str, width: int, *, shared: bool) -> Iterator[DraftTransport]:
    """Connect as `GrpcDraftLink` does: a handshake, then one stream.

    With `shared`, features go through shared memory, or it is an error.
    """
    request = pb.DrafterServiceDescribeRequest(target_fingerprint=NO_TARGET)
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        stub = DrafterServiceStub(channel)
        response = stub.Describe(request, timeout=HANDSHAKE_TIMEOUT_SECONDS)
        # The features of a single layer are as wide as that layer.
        check_description(response, num_layers=1, hidden_size=width)
        form = FeatureForm(tuple(response.target_layer_ids))
        description = DrafterDescription.from_proto(response, form)
        offer = offer_shared_memory(address) if shared else None
        transport = GrpcDraftTransport(stub, description, offer)
        if shared and not isinstance(transport.feature_writer, SharedWriter):
            raise BenchError("the drafter does not map the memory that is to be shared")
        try:
            yield transport
        finally:
            transport.close()
