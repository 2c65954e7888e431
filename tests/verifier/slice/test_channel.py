"""Leader and followers over real sockets, each follower on a thread of its own."""

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from blockdraft_verifier.slice import meeting
from blockdraft_verifier.slice.channel import (
    MAX_FRAME_BYTES,
    FollowerChannel,
    FollowerLostError,
    LeaderChannel,
    LeaderLostError,
)
from blockdraft_verifier.slice.meeting import LeaderSocket, SliceMismatchError, connect

DIGEST, OTHER = b"a" * 32, b"b" * 32
SECONDS = 10.0


Calls = Callable[..., "Future[FollowerChannel]"]


@pytest.fixture
def call() -> Iterator[Calls]:
    """Let a follower call a leader's socket from a thread of its own."""
    calls: list[Future[FollowerChannel]] = []
    with ThreadPoolExecutor() as executor:

        def submit(
            leader_socket: LeaderSocket,
            process_id: int,
            digest: bytes = DIGEST,
            token: bytes | None = None,
        ) -> "Future[FollowerChannel]":
            address = ("127.0.0.1", leader_socket.port)
            token = token or leader_socket.token
            calls.append(executor.submit(connect, address, token, process_id, digest, SECONDS))
            return calls[-1]

        yield submit
    for future in calls:
        if future.exception() is None:
            future.result().close()


Met = Callable[[int], tuple[LeaderChannel, list[FollowerChannel]]]


@pytest.fixture
def met(call: Calls) -> Iterator[Met]:
    """Bring a leader and some followers together."""
    leaders = []

    def meet(count: int) -> tuple[LeaderChannel, list[FollowerChannel]]:
        leader_socket = LeaderSocket()
        # The last one first: the order of arrival means nothing.
        futures = [call(leader_socket, number) for number in range(count, 0, -1)]
        leader = leader_socket.accept(count, DIGEST, SECONDS)
        followers = [future.result(SECONDS) for future in reversed(futures)]
        leaders.append(leader)
        return leader, followers

    yield meet
    for leader in leaders:
        leader.close()


def eventually_lost(leader: LeaderChannel) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            leader.send(b"x")
        except FollowerLostError as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("the loss was not noticed")


@pytest.mark.parametrize("count", [1, 3])
def test_frames_arrive_whole_and_in_order_at_every_follower(count: int, met: Met) -> None:
    frames = [secrets.token_bytes(size) for size in (0, 1, 4, 65536, 1_000_000)]
    leader, followers = met(count)
    with ThreadPoolExecutor(count) as executor:
        received = [
            executor.submit(lambda each: [bytes(each.receive()) for _ in frames], follower)
            for follower in followers
        ]
        for frame in frames:
            leader.send(frame[:3], frame[3:])
        assert [future.result(SECONDS) for future in received] == [frames] * count


def test_the_leader_waits_for_every_acknowledgement(met: Met) -> None:
    leader, followers = met(2)
    waiting = threading.Thread(target=leader.wait_acknowledged, daemon=True)
    waiting.start()
    followers[0].acknowledge()
    waiting.join(0.2)
    assert waiting.is_alive()
    followers[1].acknowledge()
    waiting.join(SECONDS)
    assert not waiting.is_alive()


def test_a_lost_follower_is_named(met: Met) -> None:
    leader, followers = met(2)
    heard = threading.Event()
    leader.on_loss(heard.set)
    followers[1].close()
    assert heard.wait(SECONDS)
    assert eventually_lost(leader) == "process 2 of the slice is gone"
    with pytest.raises(FollowerLostError, match="process 2"):
        leader.wait_acknowledged()


def test_a_loss_ends_the_wait_for_acknowledgements(met: Met) -> None:
    leader, followers = met(2)
    followers[0].acknowledge()
    threading.Timer(0.1, followers[1].close).start()
    with pytest.raises(FollowerLostError, match="process 2"):
        leader.wait_acknowledged()


def test_a_loss_before_anyone_listens_is_heard(met: Met) -> None:
    leader, followers = met(1)
    followers[0].close()
    eventually_lost(leader)
    heard = threading.Event()
    leader.on_loss(heard.set)
    assert heard.is_set()


def test_a_lost_leader_ends_the_follower(met: Met) -> None:
    leader, followers = met(1)
    leader.close(b"last")
    assert bytes(followers[0].receive()) == b"last"
    with pytest.raises(LeaderLostError):
        followers[0].receive()


def test_the_end_of_the_leader_is_no_loss(met: Met) -> None:
    leader, followers = met(1)
    heard = threading.Event()
    leader.on_loss(heard.set)
    leader.close()
    followers[0].close()
    assert not heard.wait(0.2)


def test_missing_followers_are_named() -> None:
    leader_socket = LeaderSocket()
    with socket.create_connection(("127.0.0.1", leader_socket.port)) as caller:
        # By hand, so that all of it was said before the leader's time begins.
        caller.sendall(meeting._HELLO.pack(leader_socket.token, DIGEST, 2))
        with pytest.raises(FollowerLostError, match=r"processes \[1, 3\] .* 0.3 s"):
            leader_socket.accept(3, DIGEST, 0.3)
        assert caller.recv(1) == meeting._ACCEPTED
        with pytest.raises(LeaderLostError):
            FollowerChannel(caller).receive()


def test_strangers_are_turned_away(call: Calls) -> None:
    leader_socket = LeaderSocket()
    silent = socket.create_connection(("127.0.0.1", leader_socket.port))
    silent.close()
    chatter = socket.create_connection(("127.0.0.1", leader_socket.port))
    chatter.sendall(secrets.token_bytes(200))
    wrong_token = call(leader_socket, 1, token=secrets.token_bytes(32))
    too_many = call(leader_socket, 2)
    right = call(leader_socket, 1)
    leader = leader_socket.accept(1, DIGEST, SECONDS)
    for stranger in (wrong_token, too_many):
        with pytest.raises(LeaderLostError, match="no leader at 127"):
            stranger.result(SECONDS)
    leader.send(b"hello")
    assert bytes(right.result(SECONDS).receive()) == b"hello"
    chatter.close()
    leader.close()


def test_strangers_that_dawdle_hold_up_no_follower(call: Calls) -> None:
    leader_socket = LeaderSocket()
    address = ("127.0.0.1", leader_socket.port)
    with contextlib.ExitStack() as strangers:
        for beginning in (b"", b"G", b"GET / HTTP/1.1\r\n\r\n", bytes(4), b"\xff" * 12) * 20:
            stranger = strangers.enter_context(socket.create_connection(address))
            stranger.sendall(beginning)
        right = call(leader_socket, 1)
        leader = leader_socket.accept(1, DIGEST, SECONDS)
        leader.send(b"hello")
        assert bytes(right.result(SECONDS).receive()) == b"hello"
        leader.close()


def test_no_process_can_call_after_the_meeting(call: Calls) -> None:
    leader_socket = LeaderSocket()
    follower = call(leader_socket, 1)
    leader = leader_socket.accept(1, DIGEST, SECONDS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", leader_socket.port))
    leader.close()
    follower.result(SECONDS)


def test_a_frame_that_is_too_long_is_not_sent(met: Met) -> None:
    leader, followers = met(1)
    with pytest.raises(ValueError, match="too long"):
        leader.send(bytes(MAX_FRAME_BYTES), b"x")
    leader.send(b"x")
    assert bytes(followers[0].receive()) == b"x"


def test_a_frame_that_is_too_long_is_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        follower = FollowerChannel(socket.create_connection(listener.getsockname()))
        leader, _ = listener.accept()
    with leader:
        leader.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
        with pytest.raises(LeaderLostError):
            follower.receive()
    follower.close()


def test_processes_that_run_different_things_do_not_meet(call: Calls) -> None:
    leader_socket = LeaderSocket()
    future = call(leader_socket, 1, digest=OTHER)
    with pytest.raises(SliceMismatchError, match=r"process 1 .* other flags, another target"):
        leader_socket.accept(1, DIGEST, SECONDS)
    with pytest.raises(SliceMismatchError):
        future.result(SECONDS)


def test_no_leader_listens() -> None:
    leader_socket = LeaderSocket()
    with pytest.raises(FollowerLostError):
        leader_socket.accept(1, DIGEST, 0.01)
    with pytest.raises(LeaderLostError, match="no leader"):
        connect(("127.0.0.1", leader_socket.port), leader_socket.token, 1, DIGEST, 1.0)
