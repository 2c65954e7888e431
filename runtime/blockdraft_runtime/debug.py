"""Shows a process from inside, to those who can reach its internal address."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc
from blockdraft_runtime.logs import recent_faults
from blockdraft_runtime.status import unary_errors

SERVICE = debug_pb2.DESCRIPTOR.services_by_name["DebugService"].full_name


class DebugService(debug_pb2_grpc.DebugServiceServicer):
    """Serves GetState."""

    def __init__(self, role: str, inspect: Callable[[], Mapping[str, object]]) -> None:
        """Show what `inspect` returns.

        Args:
            role: Which process this is.
            inspect: Returns what can be written as JSON; called on the event loop.
        """
        self._role = role
        self._inspect = inspect
        self._started = time.monotonic()

    @unary_errors
    async def GetState(  # noqa: N802
        self, request: debug_pb2.GetStateRequest, context: Any
    ) -> debug_pb2.GetStateResponse:
        """Return the state as it is now."""
        response = debug_pb2.GetStateResponse(
            role=self._role,
            process_id=os.getpid(),
            uptime_seconds=time.monotonic() - self._started,
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
