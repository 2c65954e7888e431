import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS
from tests.server.support import until
from tests.supervised import process_ids, running, serving

from blockdraft_runtime.channel import BackoffPolicy
from blockdraft_server.supervise.child import Child, Output
from blockdraft_server.supervise.plan import ChildSpec
from blockdraft_server.supervise.supervisor import ChildFailedError, RestartPolicy, Supervisor

psutil: Any = pytest.importorskip("psutil")

DUMMY = Path(__file__).parent / "dummy_child.py"
QUICK = RestartPolicy(backoff=BackoffPolicy(0.01, 0.05))


class Family:
    """Builds the specifications of dummy children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"

    def dummy(self, name: str, *options: str, stop_seconds: float = PATIENCE_SECONDS) -> ChildSpec:
        address = f"unix:{self.folder / name}.sock"
        command = (sys.executable, str(DUMMY), name, address, str(self.log), *options)
        return ChildSpec(name, command, address, stop_seconds)

    def ended(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def family() -> Iterator[Family]:
    with unix_address() as address:
        yield Family(Path(address.removeprefix("unix:")).parent)


def alive(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if runs(pid)]


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_who_serves_nobody_is_started_again_and_ends_nothing(family: Family) -> None:
    log = family.folder / "starts"
    command = (sys.executable, "-c", f"open({str(log)!r}, 'a').write('x'); raise SystemExit(1)")
    trainer = ChildSpec("trainer", command, None)
    refused = ChildSpec("refused", (sys.executable, "-c", "raise SystemExit(2)"), None)
    supervisor = Supervisor([family.dummy("server"), trainer, refused], QUICK, io.BytesIO())
    async with running(supervisor):
        await until(lambda: log.exists() and len(log.read_text()) > QUICK.max_deaths + 2)
        assert serving(supervisor) == {"server"}
        await until(lambda: "refused" not in supervisor.children)
    assert family.ended() == ["server"]


async def test_children_stop_in_order_and_their_output_is_forwarded(family: Family) -> None:
    sink = io.BytesIO()
    specs = [family.dummy("server"), family.dummy("verifier"), family.dummy("drafter")]
    supervisor = Supervisor(specs, QUICK, sink)
    async with running(supervisor):
        pids = process_ids(supervisor)
        assert sorted(alive(pids)) == ["drafter", "server", "verifier"]
    assert family.ended() == ["server", "verifier", "drafter"]
    assert alive(pids) == []
    said = [b"", b"drafter is up", b"server is up", b"verifier is up"]
    assert sorted(sink.getvalue().split(b"\n")) == said


@pytest.mark.parametrize("reader", ["gone", "slow"])
async def test_who_does_not_read_the_output_holds_up_nobody(family: Family, reader: str) -> None:
    reading, writing = os.pipe()
    if reader == "gone":
        os.close(reading)
    with open(writing, "wb", buffering=0) as sink:
        # It says more than is kept, and than pipes hold.
        supervisor = Supervisor([family.dummy("a", "--talkative")], QUICK, sink)
        async with running(supervisor):
            before = process_ids(supervisor)
            os.kill(before["a"], signal.SIGKILL)
            await until(lambda: process_ids(supervisor).get("a", before["a"]) != before["a"])
            await until(lambda: serving(supervisor) == {"a"})
            again = process_ids(supervisor)
        assert family.ended() == ["a"]
        assert alive({**again, **before}) == []
        if reader == "slow":
            assert os.read(reading, 9) == b"much ado "
            os.close(reading)


async def test_what_is_said_without_newlines_is_kept_no_further_than_lines_are() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as sink, open(reading, "rb"):
        output = Output(sink)
        program = (sys.executable, "-IS", "-c", "print('x' * 20_000_000, end='')")
        child = await Child.start(ChildSpec("a", program, None), output)
        assert await asyncio.wait_for(child.exited(), PATIENCE_SECONDS) == 0
        assert len(output._unread) <= 4


async def test_a_child_that_cannot_be_started_just_now_is_started_later(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = asyncio.create_subprocess_exec, [errno.EAGAIN, errno.EMFILE]

    async def fail_at_first(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            raise OSError(failures.pop(), "not now")
        return await start(*args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_at_first)
    supervisor = Supervisor([family.dummy("a")], QUICK, io.BytesIO())
    async with running(supervisor):
        assert not failures
    assert family.ended() == ["a"]
    failures += [errno.EAGAIN] * QUICK.max_deaths
    supervisor = Supervisor([family.dummy("a")], QUICK, io.BytesIO())
    with pytest.raises(ChildFailedError) as caught:
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE_SECONDS)
    assert "not now" in caught.value.last_lines[0]


async def test_a_child_that_could_use_its_settings_once_is_started_again(family: Family) -> None:
    supervisor = Supervisor([family.dummy("a", "--misused")], QUICK, io.BytesIO())
    async with running(supervisor):
        first = process_ids(supervisor)["a"]
        os.kill(first, signal.SIGTERM)
        await until(lambda: process_ids(supervisor).get("a", first) != first)


async def test_a_child_that_never_gets_ready_is_replaced(family: Family) -> None:
    policy = replace(QUICK, max_deaths=1000)
    children = [family.dummy("loading", "--never-ready")]
    supervisor = Supervisor(children, policy, io.BytesIO(), start_seconds=1.0)
    async with running(supervisor, wait=False):
        await until(lambda: "loading" in supervisor.children)
        first = process_ids(supervisor)["loading"]
        await until(lambda: process_ids(supervisor).get("loading", first) != first)


async def test_a_child_that_hangs_is_replaced_unless_it_is_still_loading(family: Family) -> None:
    children = [family.dummy("loading", "--never-ready"), family.dummy("hanging")]
    supervisor = Supervisor(children, QUICK, io.BytesIO(), hang_seconds=0.5)
    async with running(supervisor, wait=False):
        await until(lambda: "hanging" in serving(supervisor))
        before = process_ids(supervisor)
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        await until(lambda: process_ids(supervisor).get("hanging", 0) not in (0, before["hanging"]))
        await until(lambda: "hanging" in serving(supervisor))
        assert process_ids(supervisor)["loading"] == before["loading"]
        os.kill(before["loading"], signal.SIGCONT)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for turns")
async def test_a_child_that_is_slow_is_left_alone_and_one_that_loops_is_replaced(
    family: Family,
) -> None:
    sink = io.BytesIO()
    children = [family.dummy("slow", "--slow"), family.dummy("looping")]
    supervisor = Supervisor(children, QUICK, sink, hang_seconds=0.5)
    async with running(supervisor):
        before = process_ids(supervisor)
        for pid in before.values():
            os.kill(pid, signal.SIGUSR2)
        await until(lambda: process_ids(supervisor).get("looping", 0) not in (0, before["looping"]))
        await until(lambda: b"slow was slow" in sink.getvalue() or not runs(before["slow"]))
        assert process_ids(supervisor)["slow"] == before["slow"]


@pytest.mark.parametrize(
    ("end", "message", "starts"),
    [
        ("2", r"bad cannot start .*status 2", 1),
        ("'no such model'", r"bad keeps dying .*status 1", QUICK.max_deaths),
    ],
)
async def test_a_child_that_cannot_be_ready_stops_everything(
    family: Family, end: str, message: str, starts: int
) -> None:
    code = f"open({str(family.log)!r}, 'a').write('x'); raise SystemExit({end})"
    bad = ChildSpec("bad", (sys.executable, "-IS", "-c", code), f"unix:{family.folder}/bad.sock")
    good = family.dummy("good", "--never-ready")
    supervisor = Supervisor([good, bad], QUICK, io.BytesIO())
    with pytest.raises(ChildFailedError, match=message) as caught:
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE_SECONDS)
    assert caught.value.last_lines == (() if end == "2" else ("no such model",))
    assert family.log.read_text().partition("good")[0] == "x" * starts
    assert not supervisor.children


async def test_a_child_that_does_not_stop_is_killed(family: Family) -> None:
    stubborn = family.dummy("a", "--ignore-term", stop_seconds=0.2)
    supervisor = Supervisor([stubborn], QUICK, io.BytesIO())
    async with running(supervisor):
        pids = process_ids(supervisor)
    assert alive(pids) == []


async def test_a_stop_during_the_start_leaves_nothing_behind(family: Family) -> None:
    supervisor = Supervisor([family.dummy("a"), family.dummy("b")], QUICK, io.BytesIO())
    async with running(supervisor, wait=False):
        await asyncio.sleep(0)
    assert not supervisor.children


async def test_a_cancelled_supervisor_kills_its_children(family: Family) -> None:
    stubborn = family.dummy("a", "--ignore-term", stop_seconds=60.0)
    supervisor = Supervisor([stubborn], QUICK, io.BytesIO())
    async with running(supervisor) as (stop, task):
        pids = process_ids(supervisor)
        stop.set()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: alive(pids) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux only")
def test_children_of_a_killed_supervisor_die(family: Family) -> None:
    spec = family.dummy("a")
    program = textwrap.dedent(
        f"""
        import asyncio
        from blockdraft_server.supervise.plan import ChildSpec
        from blockdraft_server.supervise.supervisor import Supervisor

        async def main():
            supervisor = Supervisor([ChildSpec("a", {spec.command!r}, {spec.health_address!r})])
            async def announce():
                print(supervisor.children["a"].pid, flush=True)
            await supervisor.run(asyncio.Event(), announce)

        asyncio.run(main())
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive({"a": pid}) == ["a"]
        parent.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive({"a": pid}):
        assert time.monotonic() < deadline
        time.sleep(0.01)
