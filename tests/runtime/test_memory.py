import ctypes
import os

import psutil
import pytest

from blockdraft_runtime.event_loop import return_free_memory


def test_freed_memory_goes_back_to_the_system() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library has no malloc_trim")
    process = psutil.Process(os.getpid())
    # Small blocks with a survivor on top stay in the heap when they are freed.
    blocks = [bytearray(1000) for _ in range(100_000)]
    survivor = bytearray(1000)
    blocks.clear()
    before = process.memory_info().rss
    return_free_memory()
    assert process.memory_info().rss <= before
    assert len(survivor) == 1000
