"""Divides the GPUs of a host among its processes."""

from collections.abc import Sequence

import tensorflow as tf

from keras_fastnet.errors import ClusterError


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
