"""A child for the supervisor's tests: serves health, logs its end, dies when told.

Usage: dummy_child.py NAME ADDRESS LOG [--ignore-term] [--never-ready] [--talkative]
"""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    name, address, log, *options = sys.argv[1:]
    # In every thread that there will be: one of gRPC's may take it, and this one would not wake up.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    servicer = health.HealthServicer()
    if "--never-ready" in options:
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    if "--talkative" in options:
        for _ in range(100):
            print("much ado " * 10_000, file=sys.stderr)
    print(f"{name} is up", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGUSR1 if "--ignore-term" in options else signal.SIGTERM})
    with Path(log).open("a") as file:
        file.write(f"{name}\n")
    server.stop(None)


main()
