"""TensorFlow's reductions across replicas, carried out by our all-reduce."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.collectives.all_reducer import AllReducer


class TorusCrossDeviceOps(upstream.CollectiveAllReduce):
    """Sums dense tensors over the torus; gathers sparse ones as TensorFlow does.

    Args:
        reducers: An all-reducer for each of this worker's devices.
        **kwargs: Arguments of TensorFlow's `CollectiveAllReduce`.
    """

    def __init__(self, reducers: Sequence[AllReducer], **kwargs: Any):
        super().__init__(**kwargs)
        self._reducers = reducers

    def _all_reduce(self, reduce_op, value, replica_id, options):
        values = tf.nest.flatten(value)
        sparse = [i for i, v in enumerate(values) if isinstance(v, tf.IndexedSlices)]
        dense = [i for i in range(len(values)) if i not in set(sparse)]
        results = list(values)
        if sparse:
            gathered = super()._all_reduce(
                reduce_op, [values[i] for i in sparse], replica_id, options
            )
            for i, result in zip(sparse, gathered, strict=True):
                results[i] = result
        with tf.device(self._devices[replica_id]):
            sums = self._reducers[replica_id].sum(
                [tf.convert_to_tensor(values[i]) for i in dense]
            )
            for i, total in zip(dense, sums, strict=True):
                mean = reduce_op == tf.distribute.ReduceOp.MEAN
                results[i] = total / self._group_size if mean else total
        return tf.nest.pack_sequence_as(value, results)
