"""The base class of Keras 3's optimizers, on Keras 2; calls of inner optimizers."""

import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras.keras_api import keras

_New = keras.optimizers.Optimizer
_Legacy = keras.optimizers.legacy.Optimizer

# Whether `apply` is given sums over the replicas by its caller.
_given_sums = contextvars.ContextVar("_given_sums", default=False)


# The second base is for `isinstance` alone, which tensorflow-addons asks: the methods
# are those of the first. What a wrapper calls on the inner optimizer is below.
class Optimizer(_New, _Legacy):  # type: ignore[misc, valid-type]
    """An optimizer that is built and applied like one of Keras 3.

    Args:
        learning_rate: A number or a schedule.
        loss_scale_factor: Not supported.
        gradient_accumulation_steps: Not supported.
        name: The optimizer's name.
        **kwargs: Passed to Keras 2's `Optimizer`.

    Raises:
        ValueError: An argument is of Keras 3 only.
    """

    _HAS_AGGREGATE_GRAD = True
    # Not the older kind's properties.
    clipnorm = clipvalue = global_clipnorm = None

    def __init__(
        self,
        learning_rate: Any,
        *,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str,
        **kwargs: Any,
    ):
        for argument, value, instead in (
            ("loss_scale_factor", loss_scale_factor, "loss_scaling=True"),
            (
                "gradient_accumulation_steps",
                gradient_accumulation_steps,
                "accumulation_steps=…",
            ),
        ):
            if value is not None:
                raise ValueError(
                    f"`{argument}` is an argument of Keras 3's optimizers. Received: "
                    f"{argument}={value} with Keras {keras.__version__}. Use "
                    f"`LargeBatchOptimizer(optimizer, {instead})`."
                )
        schedules = keras.optimizers.schedules.LearningRateSchedule
        if callable(learning_rate) and not isinstance(learning_rate, schedules):
            raise TypeError(
                "With Keras 2 `learning_rate` must be a number or a "
                f"LearningRateSchedule. Received: {learning_rate!r}. Make the function "
                "a `keras.optimizers.schedules.LearningRateSchedule`."
            )
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
        """Notes the variables.

        Args:
            variables: The trainable variables.
        """
        _New.build(self, variables)
        # A tuple, which Keras leaves as it is.
        self._trainable_variables = tuple(variables)
        self._built = True

    def add_variable_from_reference(
        self,
        reference_variable: Any,
        variable_name: str | None = None,
        shape: Any = None,
        initial_value: Any = None,
        *,
        name: str | None = None,
    ) -> Any:
        """Makes a variable of the shape and dtype of another.

        Args:
            reference_variable: The other.
            variable_name: How the name begins, in Keras 2's words.
            shape: Another shape.
            initial_value: Its first value. Defaults to zeros.
            name: How the name begins, in Keras 3's words.
        """
        return _New.add_variable_from_reference(
            self, reference_variable, name or variable_name, shape, initial_value
        )

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Sums gradients over the replicas, clips them and updates.

        Args:
            grads: A gradient for each variable.
            trainable_variables: The variables. Defaults to those that the optimizer
                was built with.
        """
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        _New.apply_gradients(
            self,
            list(zip(grads, trainable_variables, strict=True)),
            skip_gradients_aggregation=_given_sums.get(),
        )

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Leads to `apply`.

        Args:
            grads_and_vars: Gradients with their variables.
            name: For compatibility.
            skip_gradients_aggregation: Whether gradients are sums over the replicas.
            experimental_aggregate_gradients: The opposite, in older words.
        """
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

    # What a wrapper of the older kind, as in tensorflow-addons, asks of the optimizer
    # within: variables for all, then the update of one.

    _dense_apply_args = ("grad", "var")
    _sparse_apply_args = ("grad", "var", "indices")

    def _create_hypers(self) -> None:
        pass

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        self.build(var_list)

    def _prepare(self, var_list: Sequence[Any]) -> dict[Any, Any]:
        self._compute_current_learning_rate()
        return {}

    def _prepare_local(self, device: Any, dtype: Any, apply_state: Any) -> None:
        self._compute_current_learning_rate()

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        value = getattr(self, name)
        return value if dtype is None else tf.cast(value, dtype)

    def _set_hyper(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        self._update_step(grad, var)
        return tf.no_op()

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        self._update_step(tf.IndexedSlices(grad, indices, tf.shape(var)), var)
        return tf.no_op()

    @property
    def weights(self) -> list[Any]:
        """All variables of the optimizer."""
        return list(self.variables)

    update_step: Callable[..., None]


def apply_update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Has an optimizer make its update.

    Args:
        optimizer: The optimizer.
        gradients: Sums over the replicas.
        variables: Their variables.
    """
    pairs = list(zip(gradients, variables, strict=True))
    # Both kinds know the older word.
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def build(optimizer: Any, variables: list[Any]) -> None:
    """Makes an optimizer's variables, where that has not been done.

    Args:
        optimizer: The optimizer.
        variables: What it will update.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer.

    Args:
        optimizer: The optimizer.
    """
    # Those of `legacy` leave out `iterations` until it is asked for.
    first = [optimizer.iterations]
    rest = optimizer.variables
    rest = rest() if callable(rest) else rest
    return first + [v for v in rest if v is not first[0]]


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those within, from the outside.

    Args:
        optimizer: The optimizer, such as a wrapper of tensorflow-addons.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        inner = vars(optimizer).get("_optimizer")
    return [optimizer] if inner is None else [optimizer, *with_inner(inner)]
