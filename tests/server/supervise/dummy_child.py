"""A child for the supervisor's tests: serves health, logs its end, dies when told.

Usage: dummy_child.py NAME ADDRESS LOG [OPTION], one that is looked for below.

At SIGUSR2 it answers no health check, for ever, or for 2 seconds if it is `--slow`.
"""

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


class HeldHealth(health.HealthServicer):
    """Answers while nobody holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Lock()

    def Check(self, *arguments: Any) -> Any:  # noqa: N802
        with self.held:
            return super().Check(*arguments)


def main() -> None:
    name, address, log, *options = sys.argv[1:]
    # In every thread that there will be: one of gRPC's may take it, and this one would not wake up.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    servicer = HeldHealth()
    if "--never-ready" in options:
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    server = grpc.server(ThreadPoolExecutor(8))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    if "--talkative" in options:
        for _ in range(100):
            print("much ado " * 10_000, file=sys.stderr)
    print(f"{name} is up", file=sys.stderr, flush=True)
    end = signal.SIGUSR1 if "--ignore-term" in options else signal.SIGTERM
    while signal.sigwait({end, signal.SIGUSR2}) == signal.SIGUSR2:
        with servicer.held:
            for _ in range(40) if "--slow" in options else iter(int, 1):
                if "--slow" in options:
                    time.sleep(0.05)
        print(f"{name} was slow", file=sys.stderr, flush=True)
    with Path(log).open("a") as file:
        file.write(f"{name}\n")
    server.stop(None)
    if "--misused" in options:
        raise SystemExit(2)


main()
