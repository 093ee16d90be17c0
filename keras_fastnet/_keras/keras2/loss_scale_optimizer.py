"""Dynamic loss scaling with Keras 3's interface, on Keras 2."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras2.optimizer import (
    Optimizer,
    apply_update,
    build,
    variables_of,
    with_inner,
)
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.replica_step import summed_gradients


class LossScaleOptimizer(Optimizer):
    """Scales the loss, so that gradients in float16 do not vanish.

    Args:
        inner_optimizer: What updates.
        initial_scale: The first scale.
        dynamic_growth_steps: After how many finite updates the scale doubles.
        name: The optimizer's name. Defaults to one made from the class.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
    ):
        # The rate is the inner optimizer's; there is nothing to decay here.
        super().__init__(
            0.0, name=name or type(self).__name__.lower(), weight_decay=None
        )
        self.inner_optimizer = inner_optimizer
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self.dynamic_scale = self.add_variable((), "float32", name="dynamic_scale")
        self.dynamic_scale.assign(initial_scale)
        self.step_counter = self.add_variable((), "int64", name="step_counter")

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the inner optimizer's variables.

        Args:
            variables: The trainable variables.
        """
        super().build(variables)
        build(self.inner_optimizer, list(variables))

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale.

        Args:
            loss: The loss.
        """
        return loss * tf.cast(self.dynamic_scale, loss.dtype)

    def compute_gradients(
        self, loss: Any, var_list: Sequence[Any], tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Returns the gradients of the scaled loss; `apply` unscales them.

        Args:
            loss: The loss, or a function that returns it.
            var_list: The variables.
            tape: The tape that the loss was computed on.
        """
        if callable(loss):
            with (tape := tf.GradientTape()):
                loss = loss()
        with tape:
            loss = self.scale_loss(loss)
        return super().compute_gradients(loss, var_list, tape)

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Unscales, tests for overflow, and updates where all is finite.

        Args:
            grads: Gradients of the scaled loss, or their sums over the replicas.
            trainable_variables: Their variables.
        """
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        with summed_gradients(list(grads)) as sums:
            pairs = [
                (g / tf.cast(self.dynamic_scale, g.dtype), v)
                for g, v in zip(sums, trainable_variables, strict=True)
                if g is not None
            ]
            unscaled, used = [g for g, _ in pairs], [v for _, v in pairs]
            finite = tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(g)) for g in unscaled]
            )

            def update() -> None:
                apply_update(self.inner_optimizer, unscaled, used)
                self._count_finite()

            tf.cond(finite, update, self._halve)

    def _count_finite(self) -> None:
        due = tf.equal(self.step_counter + 1, self.dynamic_growth_steps)
        factor = tf.where(due, 2.0, 1.0)
        self.dynamic_scale.assign(factor * self.dynamic_scale)
        self.step_counter.assign(
            tf.where(due, tf.zeros([], tf.int64), self.step_counter + 1)
        )

    def _halve(self) -> None:
        self.step_counter.assign(0)
        self.dynamic_scale.assign(self.dynamic_scale / 2.0)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "LossScaleOptimizer":
        """Makes an optimizer, and the one within, from a configuration.

        Args:
            config: What `get_config` returned.
            custom_objects: Names that are not registered with Keras.
        """
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(
            config.pop("inner_optimizer"), custom_objects=custom_objects
        )
        return cls(inner, **config)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Leaves the last word to the inner optimizer, which may average weights.

        Args:
            var_list: The trainable variables.
        """
        if isinstance(self.inner_optimizer, keras.optimizers.Optimizer):
            self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def variables(self) -> list[Any]:
        """Its own variables and the inner optimizer's."""
        return [*self._variables, *variables_of(self.inner_optimizer)]

    @property
    def iterations(self) -> Any:
        """The count of updates, which is the inner optimizer's."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate, which is that of the innermost optimizer.

        Addons that wrap addons do not find it.
        """
        return with_inner(self)[-1].learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        with_inner(self)[-1].learning_rate = rate
