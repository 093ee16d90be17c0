"""Chooses the strategy for the devices that a script runs on."""

import os
from typing import Any

import tensorflow as tf

from keras_fastnet.errors import ClusterError
from keras_fastnet.strategies.torus_strategy import TorusStrategy
from keras_fastnet.strategies.tpu_strategy import TPUStrategy
from keras_fastnet.text import count

_TPU = "TPU_NAME"

_on_tpus: dict[str, tf.distribute.Strategy] = {}


def strategy(tpu: str | None = None, **options: Any) -> tf.distribute.Strategy:
    """Returns the strategy for this machine or cluster, and prints which it is.

    For a TPU system it is a `TPUStrategy`, otherwise a `TorusStrategy`.

    Call it at the start of the program, like `TorusStrategy`. A second call returns the
    same strategy.

    Args:
        tpu: Name or address of a TPU system; `"local"` on a TPU machine. Defaults to
            `None`: the environment variable `TPU_NAME`, if it is set.
        **options: Arguments of `TorusStrategy`.

    Raises:
        ClusterError: If the TPU system cannot be reached, or `TorusStrategy` cannot be
            made.
        ValueError: If an option is wrong, or given with a TPU system.

    Example:
        ```python
        with keras_fastnet.strategy().scope():
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(optimizer=keras_fastnet.LARS(1.0), loss="mse")
        model.fit(x, y, batch_size=32_768)
        ```
    """
    tpu = tpu or os.environ.get(_TPU)
    if tpu:
        return _on_tpu(tpu, options)
    torus = TorusStrategy(**options)
    if torus.num_workers > 1:
        return torus  # Its chief has printed the workers and where they are described.
    devices = torus.num_replicas_in_sync
    kind = "GPU" if "GPU" in torus.extended.worker_devices[0] else "CPU"
    number = count(devices, kind)
    print(f"fastnet: TorusStrategy on {number} of one worker", flush=True)
    return torus


def _on_tpu(tpu: str, options: dict[str, Any]) -> tf.distribute.Strategy:
    if options:
        raise ValueError(
            "A TPU system reduces over its own torus. Received: "
            f"{', '.join(options)}, which are TorusStrategy's, with the TPU system "
            f"{tpu!r}. Leave them out."
        )
    if tpu in _on_tpus:
        # Connecting again would clear existing variables.
        return _on_tpus[tpu]
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu)
    except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ClusterError(
            "`tpu`, or the variable TPU_NAME, must name a TPU system that can be "
            f"reached. Received: {tpu!r}, {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0]}. Use 'local' on a TPU machine, with "
            "a TensorFlow that is built for it, and unset TPU_NAME elsewhere."
        ) from error
    found = _on_tpus[tpu] = TPUStrategy(resolver)
    print(
        f"fastnet: TPUStrategy on {found.num_replicas_in_sync} TPU cores of {tpu!r}",
        flush=True,
    )
    return found
