"""A workaround for keras#20585 that needs TensorFlow only."""

import tensorflow as tf


class MirroredWithReduce(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's strategy with a `reduce` that accepts Keras 3's arguments."""

    def reduce(self, reduce_op, value, axis=None):
        def reduce_one(v):
            own = self.experimental_local_results(v)[0]
            scalar = tf.convert_to_tensor(own).shape.rank == 0
            return super(MirroredWithReduce, self).reduce(
                reduce_op, v, axis=None if scalar else axis
            )

        return tf.nest.map_structure(reduce_one, value)
