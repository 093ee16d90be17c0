"""Settings of host and GPU memory that a strategy makes before it trains."""

import ctypes
import os
import platform
from collections.abc import Mapping

import tensorflow as tf

_GPU_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_INT_MAX = 2**31 - 1


def keep_freed_memory(environment: Mapping[str, str] | None = None) -> bool:
    """Lets this process keep the memory that it frees, to use it again.

    A training step allocates and frees many megabytes at a time. The GNU C library
    returns such memory to the system at once, which then clears every page anew at the
    next step. `benchmarks/weak_scaling` shows it in the steps of one worker: those of
    MultiWorkerMirroredStrategy against ours. The price is that the process stays as
    large as it ever was.

    Args:
        environment: Where a user may have chosen otherwise, with glibc's own
            variables MALLOC_… or GLIBC_TUNABLES. Defaults to `os.environ`.

    Returns:
        Whether it does. Not where the user chose, nor with another C library.
    """
    environment = os.environ if environment is None else environment
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _INT_MAX))
    return all(libc.mallopt(*setting) == 1 for setting in settings)


def let_memory_grow() -> None:
    """Has TensorFlow take the memory of its GPUs as it needs it.

    It takes all of it at once otherwise, and NCCL and a second process find none. Where
    the user chose, with TensorFlow's variable, or TensorFlow runs already, nothing is
    changed.
    """
    if _GPU_GROWTH in os.environ:
        return
    for gpu in tf.config.get_visible_devices("GPU"):
        try:
            if tf.config.experimental.get_memory_growth(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            # It runs, or the GPU was divided into logical ones of a fixed size.
            return
