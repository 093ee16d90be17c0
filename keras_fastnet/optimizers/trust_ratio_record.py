"""What LARS notes of its trust ratios while somebody watches."""

from typing import NamedTuple

import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet.optimizers.treatment import Treatment


class TrustRatioMeans(NamedTuple):
    """Means over the updates since the last reading, for one tensor.

    Attributes:
        trust_ratio: The factor of its learning rate.
        weight_norm: The norm of its weights, before each update.
        gradient_norm: The norm of the gradient that LARS was given.
    """

    trust_ratio: float
    weight_norm: float
    gradient_norm: float


class TrustRatioRecord:
    """Sums of trust ratios and norms, of every tensor that LARS adapts.

    Args:
        treatments: What LARS does with each of its variables.
        strategy: The `tf.distribute.Strategy` of the optimizer.
    """

    def __init__(self, treatments: list[Treatment], strategy: tf.distribute.Strategy):
        # One small variable for each: they are written in separate update contexts.
        with strategy.scope():
            self._sums = {
                index: values.new_variable(tf.zeros([4]), "record")
                for index, treatment in enumerate(treatments)
                if treatment.adapted
            }
        self._paths = {index: treatments[index].path for index in self._sums}

    def note(
        self,
        index: int,
        trust_ratio: tf.Tensor,
        weight_norm: tf.Tensor,
        gradient_norm: tf.Tensor,
    ) -> None:
        """Adds one update of one tensor.

        Args:
            index: The variable's place among those of the optimizer.
            trust_ratio: Its ratio, a scalar.
            weight_norm: The norm of its weights, a scalar.
            gradient_norm: The norm of its gradient, a scalar.
        """
        noted = tf.stack(
            [tf.ones_like(trust_ratio), trust_ratio, weight_norm, gradient_norm]
        )
        sums = values.tensorflow_variable(self._sums[index])
        sums.assign_add(tf.cast(noted, tf.float32))

    def take(self) -> dict[str, TrustRatioMeans]:
        """Returns the means by variable path, and begins anew.

        Tensors that were not updated are left out.
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
