"""Giving memory back to the operating system."""

import ctypes
import gc


def return_free_memory() -> None:
    """Return freed heap pages to the system.

    Compiling leaves hundreds of MiB of freed heap behind, which glibc keeps for itself: about
    270 MiB after the verifier's warm-up for the default target. Does nothing on systems whose C
    library has no `malloc_trim`.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
