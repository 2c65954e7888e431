"""Sends mutated messages to a service over its socket, and judges what comes back."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from tools.fuzz.mutations import mutated_message

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.status import ServiceError, error_from_proto, received_error

# Longer than any response takes: what has no end by then hangs.
HANG_SECONDS = 60.0
AT_ONCE = 16
_LEAVING = 0.03
_DEFECTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Method:
    """A method and right requests to it."""

    path: str  # of the method
    # Right calls: the messages of each; more than one only for a stream of requests.
    requests: tuple[tuple[Message, ...], ...]


@dataclass
class Tally:
    """What came back."""

    messages: int = 0  # how many were sent
    responses: Counter[str] = field(default_factory=Counter)  # how many calls ended in each way
    # What must not happen: the method and the bytes sent, and what came of them.
    bad: list[tuple[str, list[bytes], str]] = field(default_factory=list)


async def fuzz(
    channel: grpc.aio.Channel,
    methods: Sequence[Method],
    known: Callable[[], Awaitable[object]],
    messages: int,
    seed: int,
) -> Tally:
    """Send so many mutated messages, and now and then one whose response is always the same."""
    draw = random.Random(seed)
    tally = Tally()
    right = await known()

    async def caller() -> None:
        while tally.messages < messages:
            method = draw.choice(methods)
            sent = [mutated_message(draw, each) for each in draw.choice(method.requests)]
            tally.messages += len(sent)
            leaving = draw.random() < _LEAVING
            ended = await _call(channel, method.path, sent, leaving)
            tally.responses[ended.removeprefix("BAD ")] += 1
            if ended.startswith("BAD "):
                tally.bad.append((method.path, sent, ended))

    async def asker() -> None:
        while tally.messages < messages:
            await asyncio.sleep(1.0)
            if await known() != right:
                tally.bad.append(("known", [], "BAD another response to the known request"))

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)), asyncio.wait_for(asker(), None))
    if await known() != right:
        tally.bad.append(("known", [], "BAD another response to the known request"))
    return tally


async def _call(
    channel: grpc.aio.Channel, path: str, messages: Sequence[bytes], leaving: bool
) -> str:
    """Return how a call ended; beginning with "BAD" if it must not end so."""
    # On the wire, every method is a stream.
    method: Any = channel.stream_stream(path)
    call = method(_each(messages), timeout=HANG_SECONDS)
    try:
        async for response in call:
            if leaving:
                call.cancel()
                return "left"
            if path.endswith("/Decode") and (defect := _defect(response)):
                return f"BAD {defect}"
    except asyncio.CancelledError:
        return "left"
    except grpc.aio.AioRpcError as error:
        return _ending(error, len(messages))
    return "OK"


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def _ending(error: grpc.aio.AioRpcError, messages: int) -> str:
    if messages > 1 and error.details() == "Internal error from Core":
        # What gRPC for Python makes here of a call that ends while a message is being written.
        return "ended early"
    told: ServiceError | None = None
    with contextlib.suppress(ValueError):
        told = received_error(error)
    if error.code() in _DEFECTS or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"BAD {error.code().name}: {error.details()}"
    if "larger than max" in (error.details() or ""):
        return f"{error.code().name} MESSAGE_TOO_LARGE"
    if told is None:
        return f"BAD {error.code().name} without a reason: {error.details()}"
    return f"{error.code().name} {told.reason}"


def _defect(response: bytes) -> str | None:
    """Return what is wrong with an error of one sequence, None if nothing is."""
    for sequence in verifier_pb2.DecodeResponse.FromString(response).sequences:
        if sequence.HasField("error"):
            status = Status()
            sequence.error.Unpack(status)
            told = error_from_proto(status)
            if told is None or told.code in _DEFECTS:
                return f"sequence ended with {status}"
    return None
