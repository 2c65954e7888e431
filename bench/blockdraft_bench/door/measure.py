"""All points of the front door, in rounds."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import uvloop

from blockdraft_bench.common.provenance import origin
from blockdraft_bench.common.rounds import sample_in_rounds
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.serving_process import serving_process
from blockdraft_bench.door.callers import Callers, Point
from blockdraft_bench.door.command import DoorSettings
from blockdraft_bench.door.processes import Offer, serve_server, serve_verifier
from blockdraft_bench.door.report import DoorReport, DoorSpeed, markdown
from blockdraft_client import AsyncClient

# Connections, caches and memory are warm after one.
UNCOUNTED_ROUNDS = 1


def measure_door(settings: DoorSettings, run: Run) -> Outcome:
    """Start verifier and server, stream, report.

    Raises:
        BenchError: If a process does not come up, or an answer is not whole.
        BlockdraftError: If a call fails.
    """
    report = DoorReport(
        **origin(run.commit), step_ms=settings.step_ms, tokens=settings.tokens, runs=settings.runs
    )
    points = [
        Point(streams, step_tokens)
        for step_tokens in settings.step_tokens
        for streams in settings.streams
    ]
    offer = Offer(
        max(settings.streams), settings.tokens, max(settings.step_tokens), settings.step_ms / 1e3
    )
    starting = run.phase("starting verifier and server")
    with tempfile.TemporaryDirectory(prefix="blockdraft-") as folder:
        sockets = [f"unix:{Path(folder) / name}" for name in ("verifier", "server")]
        with (
            serving_process("verifier", serve_verifier, sockets[0], offer) as verifier,
            serving_process("server", serve_server, sockets[1], sockets[0]) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            starting.reach(1, 1)
            client = AsyncClient(server.address)
            processes = {"server": server.process_id, "verifier": verifier.process_id}
            callers = Callers(client, settings.tokens, processes)
            measures = {
                point: lambda point=point: runner.run(callers.read(point)) for point in points
            }
            measuring = run.phase("streaming", len(points) * (UNCOUNTED_ROUNDS + settings.runs))
            samples = sample_in_rounds(
                measures, settings.runs, measuring.advance, uncounted=UNCOUNTED_ROUNDS
            )
            runner.run(client.close())
    # Not before: there is nothing that an interrupted run could go on from.
    run.identify(replace(report, command="", commit=None, versions={}), points)
    results = tuple(DoorSpeed.of(point, samples[point]) for point in points)
    report = replace(report, results=results)
    return Outcome(report, markdown(report))
