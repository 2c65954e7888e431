"""One step on all hosts of a slice: the leader decides, the followers run the same.

A program over devices of several hosts runs only when the process of every host starts it, with
the same inputs and in the same order. The leader schedules and answers; before each step, and
before it compiles, it tells the followers, which know nothing of requests. They hold their shards
of weights and cache, and throw the outputs away.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jax.experimental import multihost_utils

from blockdraft_runtime.settings.verifier import SliceSettings
from blockdraft_verifier.slice.channel import PATIENCE_SECONDS, FollowerChannel, LeaderChannel
from blockdraft_verifier.slice.meeting import TOKEN_BYTES, LeaderSocket, connect

Tree = TypeVar("Tree")

_COMPILE, _RUN, _STOP = b"C", b"R", b"S"
_INDEX = struct.Struct("<I")
_PORT = struct.Struct("<H")
_JOIN_SECONDS = 300.0
# The devices of a dead process hold up those of all others: better to start again soon. As two
# heartbeats are sent in this time, JAX ends processes after half of it at the earliest. By then the
# channel has noticed what it can, and has logged which process it was.
_HEARTBEAT_SECONDS = 3 * int(PATIENCE_SECONDS)
_SHUTDOWN_SECONDS = 10


class StepLeader:
    """Tells the followers what to compile and run; `FollowerLostError` if one is gone."""

    def __init__(self, channel: LeaderChannel) -> None:
        """Speak on `channel`."""
        self.channel = channel

    def compile(self, words: bytes) -> None:
        """Have every follower compile its steps, while the leader does."""
        self.channel.send(_COMPILE, words)

    def wait_compiled(self) -> None:
        """Wait until every follower has compiled."""
        self.channel.wait_acknowledged()

    def run(self, step: int, inputs: object) -> None:
        """Have every follower run a step; the leader must run it next."""
        self.channel.send(_RUN, _INDEX.pack(step), to_bytes(inputs))

    def stop(self) -> None:
        """Let the followers end in peace."""
        self.channel.close(_STOP)


@runtime_checkable
class MirroringRunner(Protocol):
    """The runner of a follower."""

    def compile_mirrored(self, words: bytes) -> None:
        """Compile every step."""

    def run_mirrored(self, step: int, inputs: memoryview) -> None:
        """Run a step with the bytes of its inputs."""


class StepFollower:
    """Does as the leader says; `LeaderLostError` once it is gone."""

    def __init__(self, channel: FollowerChannel) -> None:
        """Listen on `channel`."""
        self.channel = channel

    def follow(
        self, runner: MirroringRunner, on_compiled: Callable[[], object] = lambda: None
    ) -> None:
        """Mirror the leader's steps until it stops."""
        while True:
            frame = self.channel.receive()
            kind, body = bytes(frame[:1]), frame[1:]
            if kind == _STOP:
                self.channel.close()
                return
            if kind == _COMPILE:
                runner.compile_mirrored(bytes(body))
                self.channel.acknowledge()
                on_compiled()
            else:
                (step,) = _INDEX.unpack(body[: _INDEX.size])
                runner.run_mirrored(step, body[_INDEX.size :])


def start_slice(settings: SliceSettings) -> None:
    """Wait for the other processes; must come before JAX has touched a device.

    JAX ends this process when another one dies.
    """
    # It would take SIGTERM for itself, which asks us to drain.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        settings.coordinator,
        settings.num_processes,
        settings.process_id,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )


def join_slice(leader_host: str, what_runs: str) -> StepLeader | StepFollower:
    """Connect this process, the leader or a follower, with the others; all of them must call it.

    A `SliceMismatchError` says that `what_runs` differs, a `RuntimeError` that some do not come.
    """
    digest = hashlib.sha256(what_runs.encode()).digest()
    process_id = jax.process_index()
    leader_socket = LeaderSocket() if process_id == 0 else None
    address = bytes(_PORT.size + TOKEN_BYTES)
    if leader_socket is not None:
        address = _PORT.pack(leader_socket.port) + leader_socket.token
    # JAX has brought the processes together already; through it they learn the rest.
    shared = multihost_utils.broadcast_one_to_all(np.frombuffer(address, np.uint8))
    if leader_socket is not None:
        return StepLeader(leader_socket.accept(jax.process_count() - 1, digest, _JOIN_SECONDS))
    address = np.asarray(shared, np.uint8).tobytes()
    (port,) = _PORT.unpack(address[: _PORT.size])
    token = address[_PORT.size :]
    channel = connect((leader_host, port), token, process_id, digest, _JOIN_SECONDS)
    return StepFollower(channel)


def to_bytes(tree: object) -> bytes:
    """Return the bytes of all arrays of a pytree, one after another."""
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))


def byte_count(tree: object) -> int:
    """Return the length of `to_bytes`."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def from_bytes(data: memoryview, like: Tree) -> Tree:
    """Return the pytree whose bytes these are; raise `ValueError` if they are more or fewer."""
    leaves, structure = jax.tree.flatten(like)
    sizes = [leaf.nbytes for leaf in leaves]
    if sum(sizes) != len(data):
        raise ValueError(f"inputs of {sum(sizes)} bytes expected, got {len(data)}")
    arrays, start = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        # Copied, since it may begin at any byte of the frame.
        part = np.frombuffer(data[start : start + size], leaf.dtype).copy()
        arrays.append(part.reshape(leaf.shape))
        start += size
    restored: Tree = jax.tree.unflatten(structure, arrays)
    return restored
