"""Leaders and followers in processes of their own, which are stopped and killed."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.verifier.slice.test_channel import eventually_lost

from blockdraft_verifier.slice.channel import (
    MAX_FRAME_BYTES,
    FollowerChannel,
    FollowerLostError,
    LeaderChannel,
    LeaderLostError,
)
from blockdraft_verifier.slice.meeting import LeaderSocket, connect

DIGEST = b"a" * 32
SECONDS = 30.0
# Shorter than what is served with, and longer than a busy machine needs to take a frame.
PATIENCE_SECONDS = 3.0

FOLLOWER = """
import sys
from blockdraft_verifier.slice.meeting import connect
port, token, process_id = sys.argv[1:]
channel = connect(("127.0.0.1", int(port)), bytes.fromhex(token), int(process_id), b"a" * 32, 30.0)
while True:
    channel.receive()
"""
LEADER = """
import sys
from blockdraft_verifier.slice.meeting import LeaderSocket
leader_socket = LeaderSocket()
print(leader_socket.port, leader_socket.token.hex(), flush=True)
channel = leader_socket.accept(1, b"a" * 32, 30.0, patience_seconds=2.0)
for line in sys.stdin.buffer:
    channel.send(line)
    print("sent", flush=True)
"""


def start(program: str, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@dataclass
class Met:
    leader: LeaderChannel
    followers: "list[subprocess.Popen[bytes]]"


@pytest.fixture
def met() -> Iterator[Met]:
    """Bring a leader in this process together with two followers in others."""
    leader_socket = LeaderSocket()
    with contextlib.ExitStack() as closing:
        followers = []
        for number in (1, 2):
            process = start(
                FOLLOWER, str(leader_socket.port), leader_socket.token.hex(), str(number)
            )
            followers.append(closing.enter_context(process))
            closing.callback(process.kill)
        leader = leader_socket.accept(2, DIGEST, SECONDS, PATIENCE_SECONDS)
        closing.callback(leader.close)
        yield Met(leader, followers)


def test_a_leader_that_waits_for_nothing_else_hears_of_a_stopped_follower(met: Met) -> None:
    met.followers[0].send_signal(signal.SIGSTOP)
    met.leader.send(b"x")
    # As while a step waits for the devices of all: nothing more is sent.
    with pytest.raises(FollowerLostError, match="process 1 of the slice has taken no step for 3 s"):
        met.leader.wait_acknowledged()


def test_a_follower_that_takes_nothing_does_not_hold_up_its_leader_for_ever(met: Met) -> None:
    # Both: to bring so much to one that runs may take a busy machine longer than its patience.
    for follower in met.followers:
        follower.send_signal(signal.SIGSTOP)
    # More than connections hold: the leader waits, and gives up.
    frame = bytes(MAX_FRAME_BYTES)
    with pytest.raises(FollowerLostError, match=r"process [12] .* no step"):
        met.leader.send(frame)


def test_a_follower_that_stopped_for_a_moment_goes_on_until_it_is_killed(met: Met) -> None:
    met.followers[0].send_signal(signal.SIGSTOP)
    met.leader.send(b"x")
    time.sleep(0.2)
    met.followers[0].send_signal(signal.SIGCONT)
    time.sleep(PATIENCE_SECONDS + 1)
    met.leader.send(b"x")
    met.followers[1].kill()
    assert eventually_lost(met.leader) == "process 2 of the slice is gone"


@pytest.fixture
def led() -> "Iterator[tuple[subprocess.Popen[bytes], FollowerChannel]]":
    """Bring a follower in this process together with a leader in another."""
    with start(LEADER) as process:
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        address = ("127.0.0.1", int(port))
        follower = connect(address, bytes.fromhex(token.decode()), 1, DIGEST, SECONDS)
        yield process, follower
        process.kill()
        follower.close()


def tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def test_a_killed_leader_is_noticed(
    led: "tuple[subprocess.Popen[bytes], FollowerChannel]",
) -> None:
    process, follower = led
    tell(process, b"step\n")
    assert bytes(follower.receive()) == b"step\n"
    process.kill()
    with pytest.raises(LeaderLostError, match="the leader of the slice is gone"):
        follower.receive()


def test_a_leader_that_paused_does_not_blame_its_follower(
    led: "tuple[subprocess.Popen[bytes], FollowerChannel]",
) -> None:
    process, follower = led
    assert process.stdout is not None
    for _ in range(2):
        tell(process, b"step\n")
        assert process.stdout.readline() == b"sent\n"
        process.send_signal(signal.SIGSTOP)
        follower.receive()
        # Longer than its patience.
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
    tell(process, b"last\n")
    assert bytes(follower.receive()) == b"last\n"
