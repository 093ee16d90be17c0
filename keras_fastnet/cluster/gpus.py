"""The GPUs of a process: which are its own, and their memory."""

import os
from collections.abc import Sequence

import tensorflow as tf

from keras_fastnet.errors import ClusterError

_OWN_CHOICE = "TF_FORCE_GPU_ALLOW_GROWTH"


def share_of_gpus(seen: Sequence[tuple[str | None, int]], place: int) -> slice:
    """Returns which of the GPUs that a process sees are its own.

    Processes of one host that see the same GPUs divide them, in contiguous blocks.

    Args:
        seen: What each process of the host sees: its `CUDA_VISIBLE_DEVICES`, and the
            number of GPUs.
        place: Which of them this process is.

    Raises:
        ClusterError: The GPUs cannot be divided evenly.

    Example:

    >>> [range(4)[share_of_gpus([(None, 4)] * 2, place)] for place in range(2)]
    [range(0, 2), range(2, 4)]
    """
    variable, count = seen[place]
    sharing = [other for other, what in enumerate(seen) if what == seen[place]]
    if count % len(sharing):
        raise ClusterError(
            "The processes of a host must be able to divide its GPUs. Received: "
            f"{count} GPUs (CUDA_VISIBLE_DEVICES={variable or 'not set'}) and "
            f"{len(sharing)} processes. Start as many processes as there are GPUs, "
            "or give each its own with CUDA_VISIBLE_DEVICES; -1 trains on the CPU."
        )
    each = count // len(sharing)
    first = sharing.index(place) * each
    return slice(first, first + each)


def take_gpus(own: slice) -> None:
    """Has TensorFlow use some of the visible GPUs only, before it starts.

    Args:
        own: Which of them.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if gpus[own] != gpus:
        tf.config.set_visible_devices(gpus[own], "GPU")


def let_memory_grow() -> None:
    """Has TensorFlow take the memory of its GPUs as it needs it.

    It takes all of it at once otherwise, and NCCL and a second process find none. Where
    the user chose, with TensorFlow's variable, or TensorFlow runs already, nothing is
    changed.
    """
    if _OWN_CHOICE in os.environ:
        return
    for gpu in tf.config.get_visible_devices("GPU"):
        try:
            if tf.config.experimental.get_memory_growth(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            # It runs, or the GPU was divided into logical ones of a fixed size.
            return
