"""Adapter for Keras 2 optimizers.

Keras 2 has two kinds: those since 2.11, and `keras.optimizers.legacy`, of which those
of tensorflow-addons are.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras2 import internal
from keras_fastnet._keras.keras2.optimizer import Optimizer
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.replica_step import summed_gradients

_loss_scale = internal("mixed_precision.loss_scale_optimizer")
OPTIMIZERS = (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)
"""What may be an inner optimizer."""


# The second base keeps Keras from wrapping it under a policy of float16.
class LossScaleOptimizer(Optimizer, _loss_scale.BaseLossScaleOptimizer):  # type: ignore[name-defined]
    """Scales the loss as Keras 3's, so that gradients in float16 do not vanish."""

    # Not the second base's properties.
    inner_optimizer: Any = None
    initial_scale: Any = None
    dynamic_growth_steps: Any = None

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
    ):
        # The rate is the inner optimizer's; there is nothing to decay here.
        name = name or type(self).__name__.lower()
        super().__init__(0.0, name=name, weight_decay=None)
        # Without its own count of updates, which is the inner optimizer's.
        self._variables: list[Any] = []
        self.inner_optimizer = inner_optimizer
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self.dynamic_scale = self.add_variable((), "float32", name="dynamic_scale")
        self.dynamic_scale.assign(initial_scale)
        self.step_counter = self.add_variable((), "int64", name="step_counter")

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the inner optimizer's variables for the trainable variables."""
        super().build(variables)
        inner = self.inner_optimizer
        if isinstance(inner, keras.optimizers.Optimizer):
            inner.build(list(variables))
            self._variables.extend(inner.variables)
        else:
            inner._create_all_weights(list(variables))
            self._variables.extend(inner.variables())

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale."""
        return loss * tf.cast(self.dynamic_scale, loss.dtype)

    def compute_gradients(
        self, loss: Any, var_list: Sequence[Any], tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Returns the gradients of the scaled loss, which `apply` unscales."""
        if callable(loss):
            with (tape := tf.GradientTape()):
                loss = loss()
        with tape:
            loss = self.scale_loss(loss)
        return super().compute_gradients(loss, var_list, tape)

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Unscales, tests for overflow, and updates if all gradients are finite."""
        variables = list(trainable_variables or self._trainable_variables)
        with summed_gradients(list(grads)) as sums:
            unscaled = [g / tf.cast(self.dynamic_scale, g.dtype) for g in sums]
            finite = tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(g)) for g in unscaled]
            )
            tf.cond(
                finite,
                lambda: apply_update(self.inner_optimizer, unscaled, variables),
                lambda: None,
            )
        zero = tf.zeros([], tf.int64)
        count = tf.where(finite, self.step_counter + 1, zero)
        due = tf.equal(count, self.dynamic_growth_steps)
        factor = tf.where(finite, tf.where(due, 2.0, 1.0), 0.5)
        self.dynamic_scale.assign(factor * self.dynamic_scale)
        self.step_counter.assign(tf.where(due, zero, count))

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "LossScaleOptimizer":
        """Makes an optimizer, and the one within, from a configuration."""
        config = dict(config)
        inner = dict(config.pop("inner_optimizer"))
        # The reader of `.h5` files and SavedModels knows `class_name` only.
        inner["class_name"] = inner.get("registered_name") or inner["class_name"]
        made = keras.optimizers.deserialize(inner, custom_objects=custom_objects)
        return cls(made, **config)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # A traced function, of which a SavedModel would keep the variables.
        children = super()._trackable_children(*args, **kwargs)
        return {name: child for name, child in children.items() if name != "_finish"}

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Calls the inner optimizer's, which may average the trainable variables."""
        if isinstance(self.inner_optimizer, keras.optimizers.Optimizer):
            self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def iterations(self) -> Any:
        """The number of updates, which is the inner optimizer's."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the innermost optimizer.

        Addons that wrap addons have no such attribute.
        """
        return with_inner(self)[-1].learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        with_inner(self)[-1].learning_rate = rate


LOSS_SCALE_OPTIMIZERS = (LossScaleOptimizer, _loss_scale.BaseLossScaleOptimizer)
"""Those that scale the loss."""


def apply_update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Updates variables with sums of gradients over the replicas."""
    pairs = list(zip(gradients, variables, strict=True))
    # Both kinds have the older argument.
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those that it wraps, from the outside."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        inner = vars(optimizer).get("_optimizer")
    return [optimizer] if inner is None else [optimizer, *with_inner(inner)]


def is_built(optimizer: Any) -> bool:
    """Returns whether a keras_fastnet optimizer or an SGD has its variables."""
    return getattr(optimizer, "_built", False)


def keep_variables(optimizer: Any, variables: list[Any]) -> None:
    """Records the variables that a keras_fastnet optimizer is built for."""
    Optimizer.build(optimizer, variables)


@contextlib.contextmanager
def building_scope(name: str) -> Iterator[None]:
    """A context in which an update makes the variables of the optimizer `name`."""
    with tf.init_scope(), tf.name_scope(name):
        yield


def schedule_of(optimizer: Any) -> str | None:
    """Returns the name of an optimizer's schedule; `None` if its rate can be set."""
    innermost = with_inner(optimizer)[-1]
    is_new = isinstance(innermost, keras.optimizers.Optimizer)
    rate = innermost._learning_rate if is_new else innermost._hyper["learning_rate"]
    return type(rate).__name__ if callable(rate) and not tf.is_tensor(rate) else None
