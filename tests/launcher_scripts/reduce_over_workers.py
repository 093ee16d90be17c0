"""Sums over all workers with real collectives, under Keras's progress bar."""

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step():
    def add_up():
        context = tf.distribute.get_replica_context()
        parts = [tf.ones([8]), 2.0 * tf.ones([4])]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, parts)

    return strategy.run(add_up)


bar = keras.utils.Progbar(20)
for _ in range(20):
    sums = step()
    bar.add(1, [("sum", float(sums[0][0]))])
print("replicas", strategy.num_replicas_in_sync, "sum", float(sums[1][0]))
