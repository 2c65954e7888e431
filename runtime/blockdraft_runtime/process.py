"""The life of a serving process: bind, load, serve, drain, stop."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf.json_format import ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION_SERVICE
from grpc_reflection.v1alpha.reflection import enable_server_reflection
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    disable_created_metrics,
    start_http_server,
)

from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.logs import recent_faults
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.sockets import refuse_taken_socket
from blockdraft_runtime.status import add_strictly, unary_errors

logger = logging.getLogger(__name__)


class Application(Protocol):
    """The service of a process, from the binding of its port to its end.

    Attributes:
        role: Name of the kind of process, such as "verifier".
        internal: Whether only other processes of the service call it.
        service_names: The services it registers.
    """

    role: str
    internal: bool
    service_names: Sequence[str]

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicers to `server`."""

    async def start(self) -> None:
        """Load and warm up; health turns SERVING when this returns."""

    async def drain(self) -> None:
        """Refuse new work; calls in flight go on."""

    async def stop(self) -> None:
        """Release everything; no call is in flight any more."""

    def inspect(self) -> Mapping[str, object]:
        """Return the current state, for `DebugService`; may be called at any time."""


class DebugService(debug_pb2_grpc.DebugServiceServicer):
    """Shows a process from inside, to callers that can reach its internal address."""

    def __init__(self, role: str, inspect: Callable[[], Mapping[str, object]]) -> None:
        """Show the state that `inspect` returns, as values that JSON can hold."""
        self._role = role
        self._inspect = inspect
        self._started = time.monotonic()

    @unary_errors
    async def GetState(  # noqa: N802
        self, request: debug_pb2.GetStateRequest, context: Any
    ) -> debug_pb2.GetStateResponse:
        """Return the state as it is now."""
        response = debug_pb2.GetStateResponse(
            role=self._role, process_id=os.getpid(), uptime_seconds=time.monotonic() - self._started
        )
        ParseDict(dict(self._inspect()), response.state)
        for record in recent_faults():
            response.recent_faults.add(
                time_seconds=record.created,
                level=record.levelname,
                logger=record.name,
                message=record.getMessage(),
            )
        return response


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask for an orderly end: SIGHUP too, unless `nohup` ignores it."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    return (
        numbers if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*numbers, signal.SIGHUP]
    )


async def serve(
    application: Application,
    settings: ProcessSettings,
    *,
    server: grpc.aio.Server | None = None,
    credentials: grpc.ServerCredentials | None = None,
    second: tuple[str, grpc.ServerCredentials | None] | None = None,
    health: HealthServicer | None = None,
    reflection: bool = True,
    registry: CollectorRegistry = REGISTRY,
    stop_requested: asyncio.Event | None = None,
    on_ready: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run `application` until one of the `stop_signals`, or `stop_requested`.

    Health is NOT_SERVING while loading, SERVING after `start`, and NOT_SERVING again as soon as
    a stop is asked for. Then the port closes, so that callers go to another process; the control
    address goes on until all has ended.

    Args:
        application: The servicers and their life cycle.
        settings: Where to listen; `OSError` if an address cannot be bound or is taken.
        server: A server without ports, of a caller that needs interceptors.
        credentials: Credentials of the port; None serves plaintext.
        second: A second address for the same services, and its credentials.
        health: Servicer of a caller that changes the status while serving; ignored once it stops.
        reflection: Whether callers may ask what services there are.
        registry: The metrics to expose.
        stop_requested: Set by the caller to stop without a signal.
        on_ready: Called once when the process serves.
    """
    server = server or grpc.aio.server(options=SERVER_OPTIONS)
    stop_requested = stop_requested or asyncio.Event()
    loop = asyncio.get_running_loop()
    # Python delivers signals to the main thread only; elsewhere the caller has the event.
    in_main_thread = threading.current_thread() is threading.main_thread()
    signals = stop_signals() if in_main_thread else []
    for number in signals:
        loop.add_signal_handler(number, stop_requested.set)

    health = health or HealthServicer()
    add_strictly(health_pb2_grpc.add_HealthServicer_to_server, health, server)
    application.register(server)
    names = ("", *application.service_names)
    reflected = [
        *application.service_names,
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        REFLECTION_SERVICE,
    ]
    inside = DebugService(application.role, application.inspect)
    if application.internal:
        add_strictly(debug_pb2_grpc.add_DebugServiceServicer_to_server, inside, server)
        reflected.append(debug_pb2.DESCRIPTOR.services_by_name["DebugService"].full_name)
    if reflection:
        enable_server_reflection(reflected, server)
    ports = [(settings.address, credentials), *([] if second is None else [second])]
    for address, port_credentials in ports:
        refuse_taken_socket(address)
        try:
            if port_credentials is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, port_credentials)
        except RuntimeError as error:
            # gRPC does not say why.
            raise OSError(
                f"cannot listen at {address}: is it taken, or not of this host?"
            ) from error
    # A server of its own: its services are not for callers of the public address.
    control = None
    if settings.control_address is not None:
        refuse_taken_socket(settings.control_address)
        control = grpc.aio.server(options=SERVER_OPTIONS)
        add_strictly(health_pb2_grpc.add_HealthServicer_to_server, health, control)
        add_strictly(debug_pb2_grpc.add_DebugServiceServicer_to_server, inside, control)
        control.add_insecure_port(settings.control_address)
    # When a counter was made says nothing that process_start_time_seconds does not.
    disable_created_metrics()
    endpoint = None
    if settings.metrics_port is not None:
        endpoint = start_http_server(settings.metrics_port, settings.metrics_address, registry)
    for name in names:
        await health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await server.start()
    if control is not None:
        await control.start()

    starting = asyncio.ensure_future(application.start())
    stopping = asyncio.ensure_future(stop_requested.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
            for name in names:
                await health.set(name, health_pb2.HealthCheckResponse.SERVING)
            logger.info("serving on %s", " and ".join(address for address, _ in ports))
            if on_ready is not None:
                await on_ready()
            await stopping
            logger.info("draining, at most %.0f s", settings.drain_seconds)
        await health.enter_graceful_shutdown()
        await application.drain()
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await server.stop(settings.drain_seconds)
        await application.stop()
        if control is not None:
            await control.stop(None)
        if endpoint is not None:
            http_server, thread = endpoint
            await asyncio.to_thread(http_server.shutdown)
            http_server.server_close()
            thread.join()
        for number in signals:
            loop.remove_signal_handler(number)
    logger.info("stopped")
