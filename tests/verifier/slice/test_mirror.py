"""What the leader says is what the followers' runners are told."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.packing import pack
from blockdraft_verifier.slice.channel import FollowerChannel, LeaderChannel, LeaderLostError
from blockdraft_verifier.slice.mirror import StepFollower, StepLeader, from_bytes, to_bytes


class Inputs(NamedTuple):
    flags: np.ndarray
    numbers: np.ndarray
    nested: tuple[np.ndarray, np.ndarray]


def random_inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 5))
    return Inputs(
        flags=rng.random(3) < 0.5,
        numbers=rng.integers(-(2**31), 2**31, (size, 3)).astype(np.int32),
        nested=(rng.normal(size=7).astype(np.float32), rng.integers(0, 2**32, 2).astype(np.uint32)),
    )


@dataclass
class Recorder:
    """A runner that keeps what it is told."""

    inputs: Inputs
    compiled: list[bytes] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def compile_mirrored(self, words: bytes) -> None:
        self.compiled.append(words)

    def run_mirrored(self, step: int, inputs: memoryview) -> None:
        assert bytes(inputs) == to_bytes(self.inputs)
        self.steps.append(step)


@pytest.fixture
def link() -> Iterator[tuple[StepLeader, StepFollower]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    leader, follower = LeaderChannel({1: ours}), FollowerChannel(theirs)
    yield StepLeader(leader), StepFollower(follower)
    leader.close()
    follower.close()


@pytest.mark.parametrize("seed", range(5))
def test_inputs_come_back_from_their_bytes(seed: int) -> None:
    inputs = random_inputs(seed)
    # At an odd address, as in the middle of a frame.
    data = memoryview(b"x" + to_bytes(inputs))[1:]
    restored = from_bytes(data, inputs)
    assert isinstance(restored, Inputs)
    arrays, originals = (*restored[:2], *restored[2]), (*inputs[:2], *inputs[2])
    for array, original in zip(arrays, originals, strict=True):
        assert array.dtype == original.dtype
        np.testing.assert_array_equal(array, original)


@pytest.mark.parametrize("change", [-1, 1])
def test_inputs_of_another_size_are_refused(change: int) -> None:
    inputs = random_inputs(0)
    data = (to_bytes(inputs) + b"x")[: len(to_bytes(inputs)) + change]
    with pytest.raises(ValueError, match="bytes expected"):
        from_bytes(memoryview(data), inputs)


def test_a_packed_step_stays_on_the_host() -> None:
    packed = pack((), Bucket(4, 8, 8), page_size=4, num_pages=9, max_pages=3)
    restored = from_bytes(memoryview(to_bytes(packed)), packed)
    assert isinstance(packed.token_ids, np.ndarray)
    np.testing.assert_array_equal(restored.batch.slots, packed.batch.slots)


def test_followers_are_told_in_order(link: tuple[StepLeader, StepFollower]) -> None:
    leader, follower = link
    inputs = random_inputs(1)
    leader.compile(b"first")
    leader.run(3, inputs)
    leader.run(0, inputs)
    leader.compile(b"")
    leader.stop()
    recorder = Recorder(inputs)
    compiled: list[int] = []
    follower.follow(recorder, lambda: compiled.append(len(recorder.compiled)))
    assert recorder.compiled == [b"first", b""]
    assert recorder.steps == [3, 0]
    assert compiled == [1, 2]


def test_the_leader_hears_that_all_have_compiled(link: tuple[StepLeader, StepFollower]) -> None:
    leader, follower = link
    leader.compile(b"only")

    def on_compiled() -> None:
        leader.wait_compiled()
        leader.channel.close()

    with pytest.raises(LeaderLostError):
        follower.follow(Recorder(random_inputs(0)), on_compiled)
