"""Trust ratios that LARS accumulates for `TrustRatioMonitor`."""

from typing import NamedTuple

import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet.optimizers.treatment import Treatment


class TrustRatioMeans(NamedTuple):
    """Means over the updates since the last reading, for one tensor.

    Attributes:
        trust_ratio: The factor of its learning rate.
        weight_norm: The L2 norm of its weights, before each update.
        gradient_norm: The L2 norm of the gradient passed to LARS.
    """

    trust_ratio: float
    weight_norm: float
    gradient_norm: float


class TrustRatioRecord:
    """Accumulates trust ratios and norms of every tensor that LARS adapts.

    Args:
        treatments: The treatment of each of the optimizer's variables.
        strategy: The `tf.distribute.Strategy` of the optimizer.
    """

    def __init__(self, treatments: list[Treatment], strategy: tf.distribute.Strategy):
        # One small variable for each tensor, as each is updated in its own update
        # context.
        with strategy.scope():
            self._sums = {
                index: values.new_variable(tf.zeros([4]), "record")
                for index, treatment in enumerate(treatments)
                if treatment.adapted
            }
        self._paths = {index: treatments[index].path for index in self._sums}

    def add(
        self,
        index: int,
        trust_ratio: tf.Tensor,
        weight_norm: tf.Tensor,
        gradient_norm: tf.Tensor,
    ) -> None:
        """Adds one update of one tensor.

        Args:
            index: The variable's index in the optimizer.
            trust_ratio: Its trust ratio, a scalar.
            weight_norm: The norm of its weights, a scalar.
            gradient_norm: The norm of its gradient, a scalar.
        """
        addends = tf.stack(
            [tf.ones_like(trust_ratio), trust_ratio, weight_norm, gradient_norm]
        )
        sums = values.tensorflow_variable(self._sums[index])
        sums.assign_add(tf.cast(addends, tf.float32))

    def take(self) -> dict[str, TrustRatioMeans]:
        """Returns the means by variable path, and resets them.

        Tensors that were not updated are omitted.
        """
        means: dict[str, TrustRatioMeans] = {}
        for index, sums in self._sums.items():
            updates, *totals = values.to_numpy(sums).tolist()
            if updates:
                means[self._paths[index]] = TrustRatioMeans(
                    *(total / updates for total in totals)
                )
                sums.assign(tf.zeros([4]))
        return means
