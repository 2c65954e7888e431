"""Work on a few threads, for which tenants take turns."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class FairQueue:
    """Runs the work of tenants in turn; cancelling a future drops its work unless it has begun."""

    def __init__(self, threads: Executor, free: int) -> None:
        """Run at most `free` works at a time."""
        self._threads, self._free = threads, free
        self._waiting: OrderedDict[bytes, dict[asyncio.Future[Any], Callable[[], Any]]]
        self._waiting = OrderedDict()

    def waiting(self, tenant: bytes) -> int:
        """Return the number of a tenant's works that have not begun."""
        return len(self._waiting.get(tenant, ()))

    def submit(self, tenant: bytes, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future result of some work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, {})[future] = work
        future.add_done_callback(partial(self._drop, tenant))
        self._begin()
        return future

    def _begin(self) -> None:
        while self._free and self._waiting:
            tenant, works = self._waiting.popitem(last=False)
            future = next(iter(works))
            work = works.pop(future)
            if works:
                self._waiting[tenant] = works
            self._free -= 1
            running = future.get_loop().run_in_executor(self._threads, work)
            running.add_done_callback(partial(self._end, future))

    def _end(self, future: asyncio.Future[Any], run: asyncio.Future[Any]) -> None:
        self._free += 1
        error = run.exception()
        if future.cancelled():
            pass
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(run.result())
        self._begin()

    def _drop(self, tenant: bytes, future: asyncio.Future[Any]) -> None:
        works = self._waiting.get(tenant, {})
        if works.pop(future, None) is not None and not works:
            del self._waiting[tenant]
