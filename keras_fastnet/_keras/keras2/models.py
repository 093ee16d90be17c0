"""Models of Keras 2, as the rest of the package asks for them."""

from collections.abc import Callable
from typing import Any

from keras_fastnet._keras.active_strategy import MicroBatchOptimizer


def step_of(function: Callable[..., Any]) -> None:
    """Returns `None`: TensorFlow runs the steps of Keras 2 as any other function."""
    return None


def build_optimizer(model: Any) -> None:
    """Makes the optimizer's variables, which Keras leaves to the first step."""
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)


def retrace(model: Any) -> None:
    """Makes `fit` trace the train function again, from `on_train_begin` on."""
    model.train_function = model.make_train_function(force=True)
    if isinstance(model.optimizer, MicroBatchOptimizer):
        model.optimizer.retrace()
