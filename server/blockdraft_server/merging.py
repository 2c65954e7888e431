"""Several completions of one request, and their messages as one stream."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import NamedTuple

from blockdraft_protos.v1 import inference_pb2

MAX_COMPLETIONS = 16
"""Most completions of one prompt that a request may ask for, `n`."""

Message = inference_pb2.StreamGenerateResponse


class _Arrived(NamedTuple):
    """What came of one of the completions: a message, an error, or None if it was cancelled."""

    completion: int
    message: Message | Exception | None


async def merged(
    completions: Sequence[AsyncGenerator[Message, None]],
    begun: Callable[[list["asyncio.Task[None]"]], None] | None = None,
) -> AsyncGenerator[tuple[int, Message | None], None]:
    """Yield the messages of all completions as they come, each with the completion's number.

    The first error ends them all. `begun` is told the tasks that read them; the completion of one
    that is cancelled ends with None.
    """
    if len(completions) == 1 and begun is None:
        async with contextlib.aclosing(completions[0]) as only:
            async for each in only:
                yield 0, each
        return
    arrived: asyncio.Queue[_Arrived] = asyncio.Queue()
    # Of a caller that reads slowly, the rest waits where it is merged into fewer messages.
    room = asyncio.Semaphore(len(completions))

    async def follow(index: int) -> None:
        try:
            async with contextlib.aclosing(completions[index]) as messages:
                async for message in messages:
                    await room.acquire()
                    arrived.put_nowait(_Arrived(index, message))
        except Exception as error:
            arrived.put_nowait(_Arrived(index, error))

    def ended(task: "asyncio.Task[None]", index: int) -> None:
        # Also of a task that was cancelled before it began.
        if task.cancelled():
            arrived.put_nowait(_Arrived(index, None))

    tasks = [asyncio.create_task(follow(index)) for index in range(len(completions))]
    for index, task in enumerate(tasks):
        task.add_done_callback(partial(ended, index=index))
    if begun is not None:
        begun(tasks)
    left = set(range(len(completions)))
    try:
        while left:
            index, message = await arrived.get()
            if isinstance(message, Exception):
                raise message
            if message is not None:
                room.release()
            if index in left:
                yield index, message
            if message is None or message.finish_reason:
                left.discard(index)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def copies(
    request: inference_pb2.StreamGenerateRequest, count: int
) -> list[inference_pb2.StreamGenerateRequest]:
    """Return the requests for so many completions, which differ: the seed of each is one more."""
    wanted = [request]
    for index in range(1, count):
        wanted.append(inference_pb2.StreamGenerateRequest())
        wanted[index].CopyFrom(request)
        if request.sampling.HasField("seed"):
            wanted[index].sampling.seed = _next(request.sampling.seed, index)
    return wanted


def _next(seed: int, by: int) -> int:
    """Return a seed of 64 bits further on, the smallest after the largest."""
    return (seed + by + (1 << 63)) % (1 << 64) - (1 << 63)
