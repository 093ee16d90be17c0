"""The base class of Keras 3's optimizers, on Keras 2."""

import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import keras, require_keras_3

_New = keras.optimizers.Optimizer

# Whether the caller of `apply` passes sums over the replicas.
_given_sums = contextvars.ContextVar("_given_sums", default=False)


class Optimizer(_New):  # type: ignore[misc, valid-type]
    """An optimizer that is built and applied like one of Keras 3.

    Args:
        learning_rate: A number or a schedule.
        name: The optimizer's name.
        **kwargs: Passed to Keras 2's `Optimizer`.

    Raises:
        NotImplementedError: An argument is of Keras 3 only.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        name: str,
        **kwargs: Any,
    ):
        # LargeBatchOptimizer does both.
        for argument in ("loss_scale_factor", "gradient_accumulation_steps"):
            if kwargs.pop(argument, None) is not None:
                require_keras_3(f"`{argument}`")
        schedules = keras.optimizers.schedules.LearningRateSchedule
        if callable(learning_rate) and not isinstance(learning_rate, schedules):
            require_keras_3("A learning rate that is a function without arguments")
        # XLA would compile each variable's update by itself, and take as long again.
        kwargs["jit_compile"] = False
        _New.__init__(self, name=name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self._trainable_variables: tuple[Any, ...] = ()

    @property
    def built(self) -> bool:
        """Whether the optimizer has its variables."""
        return getattr(self, "_built", False)

    def build(self, variables: Sequence[Any]) -> None:
        """Records the trainable variables, of which subclasses make buffers."""
        _New.build(self, variables)
        # A tuple, which Keras does not wrap.
        self._trainable_variables = tuple(variables)
        self._built = True

    def add_variable_from_reference(
        self, variable: Any, variable_name: Any = None, *args: Any, name: Any = None
    ) -> Any:
        """As in Keras 2, with Keras 3's argument `name` for `variable_name`."""
        name = name or variable_name
        return _New.add_variable_from_reference(self, variable, name, *args)

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """As in Keras 3: sums gradients over the replicas, clips them and updates."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        _New.apply_gradients(
            self,
            list(zip(grads, trainable_variables, strict=True)),
            skip_gradients_aggregation=_given_sums.get(),
        )

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """As in Keras 2, by `apply`, which subclasses override."""
        pairs = list(grads_and_vars)
        skip = skip_gradients_aggregation or not experimental_aggregate_gradients
        token = _given_sums.set(skip or _given_sums.get())
        try:
            self.apply([g for g, _ in pairs], [v for _, v in pairs])
        finally:
            _given_sums.reset(token)
        return self.iterations

    def _update_step(self, gradient: Any, variable: Any) -> None:
        self.update_step(gradient, variable, self.learning_rate)

    def _get_variable_index(self, variable: Any) -> int:
        return self._index_dict[self._var_key(variable)]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, from which `from_config` makes a copy."""
        config = _New.get_config(self)
        for name in ("jit_compile", "is_legacy_optimizer"):
            config.pop(name, None)
        rate = self._serialize_hyperparameter(self._learning_rate)
        if not isinstance(rate, dict):
            rate = float(rate)
        return {**config, "learning_rate": rate}

    update_step: Callable[..., None]
