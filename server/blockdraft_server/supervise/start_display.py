"""The display of a start on a terminal: a bar for each process, and warnings above them."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc
from blockdraft_runtime.event_loop import MOST_COUNTED
from blockdraft_server.supervise.plan import ChildSpec

_POLL_SECONDS = 0.5
_DRAW_SECONDS = 0.2
_JOIN_SECONDS = 1.0
# A line of the log: level, process, message.
_LOGGED = re.compile(r"\S+Z ([A-Z]+) +(\S+) [\w.]+: (.*)")
_STYLES = {"WARNING": "yellow", "ERROR": "red"}


@dataclass(frozen=True, slots=True)
class Stage:
    """The progress of a process that starts."""

    name: str = "starting"
    finished_count: int = 0
    total: int = 0  # 0 if it is not known


class StartDisplay:
    """Draws the bars, and passes on lines of the log: the sink of `child.Output`.

    A thread of its own draws: a terminal that is stopped must not hold the event loop.
    """

    def __init__(self, names: Sequence[str], sink: BinaryIO, console: Console) -> None:
        """Draw a bar for each process until `close`; `sink` gets the lines after that."""
        self._sink = sink
        self._stages = {name: Stage() for name in names}
        self._closing = threading.Event()
        self._progress = Progress(
            TextColumn("{task.fields[process]:<9}"),
            TextColumn("{task.description:<24}"),
            BarColumn(),
            TextColumn("{task.fields[count]:>8}"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._bars = {
            name: self._progress.add_task("starting", process=name, count="", total=None)
            for name in names
        }
        self._drawing = threading.Thread(target=self._draw, name="start display", daemon=True)
        self._drawing.start()

    def update(self, name: str, stage: Stage) -> None:
        """Show another stage soon."""
        self._stages[name] = stage

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """Remove the bars within moments, and pass all lines on from now on."""
        self._closing.set()

    def join(self) -> None:
        """Wait for moments until the bars are gone, and the cursor is back."""
        self._drawing.join(_JOIN_SECONDS)

    def write(self, data: bytes) -> int:
        """Write whole lines; called by the thread of `Output`."""
        if self._closing.is_set():
            self._drawing.join()
            return self._sink.write(data)
        for line in data.decode(errors="replace").splitlines():
            logged = _LOGGED.fullmatch(line)
            # Of the log, only warnings and errors: the bars show the rest.
            if logged is None:
                self._progress.console.print(Text(line), soft_wrap=True)
            elif style := _STYLES.get(logged[1]):
                text = Text(f"{logged[2]}: {logged[3]}", style)
                self._progress.console.print(text, soft_wrap=True)
        return len(data)

    def flush(self) -> None:
        """Flush the sink."""
        self._sink.flush()

    def _draw(self) -> None:
        with self._progress:
            while not self._closing.wait(_DRAW_SECONDS):
                for name, bar in self._bars.items():
                    self._show(bar, self._stages[name])
                self._progress.refresh()

    def _show(self, bar: TaskID, stage: Stage) -> None:
        task = next(task for task in self._progress.tasks if task.id == bar)
        total = stage.total or None
        if (task.description, task.total) != (stage.name, total):
            # The estimate of another stage says nothing of this one.
            self._progress.reset(bar, description=stage.name)
            task.total = total  # `reset` takes None for "as before"
        count = f"{stage.finished_count}/{stage.total}" if 1 < stage.total < MOST_COUNTED else ""
        self._progress.update(bar, completed=stage.finished_count, count=count)


async def follow_start(
    specs: Sequence[ChildSpec], ready: Callable[[str], bool], display: StartDisplay
) -> None:
    """Ask the processes again and again how far they are, until the display is closed."""
    while not display.closed:
        for spec in specs:
            if spec.health_address is None:
                continue
            if ready(spec.name):
                display.update(spec.name, Stage("ready", 1, 1))
            else:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    display.update(spec.name, await _stage(spec.health_address))
        await asyncio.sleep(_POLL_SECONDS)


async def _stage(address: str) -> Stage:
    # A connection of its own: gRPC prints lines about one that ends with the process.
    async with grpc.aio.insecure_channel(
        address, options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        stub = debug_pb2_grpc.DebugServiceStub(channel)
        response = await stub.GetState(debug_pb2.GetStateRequest(), timeout=_POLL_SECONDS)
    return stage_of(MessageToDict(response.state))


def stage_of(state: Mapping[str, object]) -> Stage:
    """Return the stage that a process reports in its state; one that serves reports none."""
    if "stage" not in state:
        return Stage("waiting for the verifier")
    counts = (int(float(str(state.get(name, 0)))) for name in ("done", "total"))
    return Stage(str(state["stage"]), *counts)
