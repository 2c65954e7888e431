"""Runs smg, the gateway that serves OpenAI's HTTP API, as soon as the server behind it is ready."""

import secrets
import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_POLL_SECONDS = 0.2
# It is on this host: no proxy is on the way, and it may come at any moment.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500))


def main(server: str, *flags: str) -> None:
    """Run `smg launch` in front of a server, without the picture that smg's log begins with."""
    # Imported here: it is the only thing that needs blockdraft[openai].
    from smg import cli, launch_router

    # smg abandons a worker that takes long to load its model.
    _wait(server)
    launch_router.print_banner = lambda *about: None
    # Without a key, anybody could give the gateway other workers; nobody needs to know this one.
    key = f"serve:serve:admin:{secrets.token_urlsafe(32)}"
    own = (f"--worker-urls=grpc://{server}", f"--control-plane-api-keys={key}")
    cli.main(["launch", *own, *flags])


def _wait(server: str) -> None:
    with grpc.insecure_channel(server, options=_OPTIONS) as channel:
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
