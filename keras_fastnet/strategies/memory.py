"""A setting of the C library's memory, made before training."""

import ctypes
import os
import platform

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_INT_MAX = 2**31 - 1


def keep_freed_memory() -> None:
    """Makes this process keep the memory that it frees, to use it again.

    A training step allocates and frees many megabytes at a time. The GNU C library
    returns such memory to the system, which clears every page again in the next step;
    `benchmarks/weak_scaling` shows the cost in the steps of one worker. In exchange the
    process never gets smaller.

    Does nothing with another C library, or if the user set one of glibc's variables
    MALLOC_… or GLIBC_TUNABLES.
    """
    is_set = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if is_set or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _INT_MAX)
