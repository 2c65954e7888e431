"""A leader here, followers in processes of their own, and steps of all sizes in rounds."""

import contextlib
import functools
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from blockdraft_bench.common.provenance import origin
from blockdraft_bench.common.rounds import UNCOUNTED_ROUNDS, sample_in_rounds
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.slice.command import SliceBenchSettings
from blockdraft_bench.slice.report import AnnouncementTime, SliceReport, markdown
from blockdraft_verifier.slice.channel import LeaderChannel, LeaderLostError
from blockdraft_verifier.slice.meeting import DIGEST_BYTES, Listener, connect

DIGEST = bytes(DIGEST_BYTES)
START_SECONDS = 60.0
STOP_SECONDS = 10.0
# As between steps: whoever waits has gone to sleep.
PAUSE_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one step took, in seconds.

    Attributes:
        held: From before the leader's call until the last follower held the step.
        leader: The leader's call.
    """

    held: float
    leader: float


def measure_slice(settings: SliceBenchSettings, run: Run) -> Outcome:
    """Start the followers, announce, report.

    Raises:
        FollowerLostError: If a follower does not come, or is lost.
    """
    report = SliceReport(**origin(run.commit), followers=settings.followers, runs=settings.runs)
    starting = run.phase("starting followers")
    with open_slice(settings.followers) as (leader, pipes):
        starting.reach(1, 1)
        measures = {
            size: functools.partial(announce, leader, pipes, bytes(size)) for size in settings.bytes
        }
        measuring = run.phase("measuring", len(measures) * (UNCOUNTED_ROUNDS + settings.runs))
        samples = sample_in_rounds(measures, settings.runs, measuring.advance)
    # Not before: there is nothing that an interrupted run could go on from.
    run.identify(replace(report, command="", commit=None, versions={}), settings.bytes)
    results = tuple(
        AnnouncementTime.of(size, [each.held for each in taken], [each.leader for each in taken])
        for size, taken in samples.items()
    )
    report = replace(report, results=results)
    return Outcome(report, markdown(report))


def announce(leader: LeaderChannel, pipes: Sequence[Connection], inputs: bytes) -> Announcement:
    """Announce one step, and hear from the followers when they held it."""
    time.sleep(PAUSE_SECONDS)
    started = time.perf_counter()
    leader.send(inputs)
    returned = time.perf_counter()
    # All processes of a machine have one such clock.
    held = max(pipe.recv() for pipe in pipes)
    return Announcement(held - started, returned - started)


@contextlib.contextmanager
def open_slice(count: int) -> Iterator[tuple[LeaderChannel, Sequence[Connection]]]:
    """Bring a leader together with followers; give its channel, and a pipe from each of them."""
    # A fork would take over the threads' locks, but not the threads of gRPC and jax.
    context = multiprocessing.get_context("spawn")
    listener = Listener()
    pipes = []
    with contextlib.ExitStack() as stopping:
        for number in range(1, count + 1):
            ours, theirs = context.Pipe()
            arguments = (theirs, listener.port, listener.token, number)
            process = context.Process(target=_follow, args=arguments, daemon=True)
            process.start()
            theirs.close()
            stopping.callback(process.join, STOP_SECONDS)
            pipes.append(stopping.enter_context(ours))
        leader = listener.accept(count, DIGEST, START_SECONDS)
        stopping.callback(leader.close)
        yield leader, pipes


def _follow(pipe: Connection, port: int, token: bytes, number: int) -> None:
    # Ctrl-C reaches all processes; the leader then ends the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = connect(("localhost", port), token, number, DIGEST, START_SECONDS)
    with contextlib.suppress(LeaderLostError, OSError):
        while True:
            channel.receive()
            pipe.send(time.perf_counter())
