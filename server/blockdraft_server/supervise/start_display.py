"""The display of a start on a terminal: a row for each process, and warnings above them."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, TextIO

import grpc
from google.protobuf.json_format import MessageToDict

from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc
from blockdraft_runtime.terminal import TerminalRows, colored
from blockdraft_server.supervise.plan import ChildSpec

_POLL_SECONDS = 0.5
_DRAW_SECONDS = 0.2
_JOIN_SECONDS = 1.0
# A line of the log: level, process, message.
_LOGGED = re.compile(r"\S+Z ([A-Z]+) +(\S+) [\w.]+: (.*)")
_COLORS = {"WARNING": 33, "ERROR": 31}


class StartDisplay:
    """Draws a row for each process, and passes on lines of the log: the sink of `child.Output`.

    A thread of its own draws: a terminal that is stopped must not hold the event loop.
    """

    def __init__(self, names: Sequence[str], sink: BinaryIO, file: TextIO) -> None:
        """Draw the rows until `close`; `sink` gets the lines after that."""
        self._sink = sink
        self._words = dict.fromkeys(names, "starting")
        self._closing = threading.Event()
        self._rows = TerminalRows(file)
        self._drawing = threading.Thread(target=self._draw, name="start display", daemon=True)
        self._drawing.start()

    def update(self, name: str, words: str) -> None:
        """Say soon how far a process is."""
        self._words[name] = words

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """Remove the rows within moments, and pass all lines on from now on."""
        self._closing.set()

    def join(self) -> None:
        """Wait for moments until the rows are gone, and the cursor is back."""
        self._drawing.join(_JOIN_SECONDS)

    def write(self, data: bytes) -> int:
        """Write whole lines; called by the thread of `Output`."""
        if self._closing.is_set():
            self._drawing.join()
            return self._sink.write(data)
        for line in data.decode(errors="replace").splitlines():
            logged = _LOGGED.fullmatch(line)
            # Of the log, only warnings and errors: the rows show the rest.
            if logged is None:
                self._rows.print(line)
            elif color := _COLORS.get(logged[1]):
                self._rows.print(colored(f"{logged[2]}: {logged[3]}", color))
        return len(data)

    def flush(self) -> None:
        """Flush the sink."""
        self._sink.flush()

    def _draw(self) -> None:
        while not self._closing.wait(_DRAW_SECONDS):
            self._rows.show([f"{name:<8} {words}" for name, words in self._words.items()])
        self._rows.close()


async def follow_start(
    specs: Sequence[ChildSpec], ready: Callable[[str], bool], display: StartDisplay
) -> None:
    """Ask the processes again and again how far they are, until the display is closed."""
    while not display.closed:
        for spec in specs:
            if spec.health_address is None:
                continue
            if ready(spec.name):
                display.update(spec.name, "ready")
            else:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    display.update(spec.name, words_of(await _state(spec.health_address)))
        await asyncio.sleep(_POLL_SECONDS)


async def _state(address: str) -> Mapping[str, object]:
    # A connection of its own: gRPC prints lines about one that ends with the process.
    async with grpc.aio.insecure_channel(
        address, options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        stub = debug_pb2_grpc.DebugServiceStub(channel)
        response = await stub.GetState(debug_pb2.GetStateRequest(), timeout=_POLL_SECONDS)
    return MessageToDict(response.state)


def words_of(state: Mapping[str, object]) -> str:
    """Return how far a process is by its state; the server says nothing, and waits."""
    return str(state.get("words", "waiting for the verifier"))
