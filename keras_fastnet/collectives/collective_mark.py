"""Marks around collectives, by which another thread sees that one waits."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class CollectiveMark:
    """Counts beginnings and ends of collectives that run one after the other.

    TensorFlow cannot say whether a collective waits. Its own time limit for each
    collective, `timeout_seconds`, keeps a thread for as long as the limit is: hundreds
    of sums a second would need tens of thousands of threads. Two additions to a
    variable take some microseconds.

    Args:
        device: The device of the tensors. The marks are on its worker's CPU.
    """

    def __init__(self, device: str):
        cpu = tf.DeviceSpec.from_string(device).replace(
            device_type="CPU", device_index=0
        )
        self._device = cpu.to_string()
        with tf.init_scope(), tf.device(self._device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._seen = 0
        self._seen_at = 0.0

    def around(self, values: Any, collective: Callable[[], Any]) -> Any:
        """Runs a collective between two marks.

        Args:
            values: Its tensors; the first mark waits until they are computed.
            collective: Runs it, and returns a structure of tensors.

        Returns:
            The result of `collective`.
        """
        with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
            begun = self._add_one()
        with tf.control_dependencies([begun]):
            results = collective()
        with tf.control_dependencies(tf.nest.flatten(results, expand_composites=True)):
            self._add_one()
        return results

    def waited(self) -> float:
        """Returns for how many seconds the present collective has run, or 0.0.

        It counts from the first call that found it running.
        """
        count = int(self._count.numpy())
        now = time.monotonic()
        if count != self._seen:
            self._seen, self._seen_at = count, now
        # Odd: begun and not ended.
        return now - self._seen_at if count % 2 else 0.0

    def _add_one(self) -> Any:
        with tf.device(self._device):
            add = self._count.assign_add(1, read_value=False)
        # Eager operations have run when they return.
        return tf.no_op() if add is None else add
