"""Runs smg, the gateway that serves OpenAI's HTTP API, as soon as the server behind it is ready."""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_POLL_SECONDS = 0.2


def main(server: str, *flags: str) -> None:
    """Run `smg launch` in front of a server, without the picture that smg's log begins with."""
    # Imported here: it is the only thing that needs blockdraft[openai].
    from smg import cli, launch_router

    # smg gives a worker up that takes long to load its model.
    _wait(server)
    launch_router.print_banner = lambda *about: None
    cli.main(["launch", f"--worker-urls=grpc://{server}", *flags])


def _wait(server: str) -> None:
    with grpc.insecure_channel(server) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                response = health.Check(  # type: ignore[attr-defined]  # its stubs lack it
                    health_pb2.HealthCheckRequest(), timeout=5
                )
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass  # It does not listen yet.
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
