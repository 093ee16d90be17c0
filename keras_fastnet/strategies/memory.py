"""Settings of host and GPU memory, made before training."""

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
    """Makes this process keep the memory that it frees, to use it again.

    A training step allocates and frees many megabytes at a time. The GNU C library
    returns such memory to the system, which clears every page again in the next step;
    `benchmarks/weak_scaling` shows the cost in the steps of one worker. In exchange the
    process never gets smaller.

    Args:
        environment: The environment, in which the user may have set glibc's variables
            MALLOC_… or GLIBC_TUNABLES. Defaults to `os.environ`.

    Returns:
        Whether it does: `False` if the user set such a variable, or with another C
        library.
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
    """Makes TensorFlow allocate GPU memory as it needs it.

    Otherwise it allocates all memory at once, and NCCL and a second process find none.
    Does nothing if the user set TF_FORCE_GPU_ALLOW_GROWTH, or TensorFlow runs already.
    """
    if _GPU_GROWTH in os.environ:
        return
    for gpu in tf.config.get_visible_devices("GPU"):
        try:
            if tf.config.experimental.get_memory_growth(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            # TensorFlow runs, or the GPU is divided into logical ones of fixed sizes.
            return
