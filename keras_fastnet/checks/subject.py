"""`Subject`: the model to check, and its data."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_fastnet._keras.keras_api import keras

Data = tuple[Any, ...]
EXAMPLES_PER_REPLICA = 16
"""With fewer examples, batch normalization magnifies rounding errors."""


@dataclasses.dataclass
class Subject:
    """The model to check, and its data.

    Attributes:
        make_model: Returns the compiled model. Called in the scope of a strategy, and
            outside of any.
        make_data: Returns inputs and, if there are some, targets and sample weights for
            `fit`, given the number of examples: the same on all workers.
        name: The model's name in messages. Defaults to `"the model"`.
    """

    make_model: Callable[[], keras.Model]
    make_data: Callable[[int], Data]
    name: str = "the model"


def small_network() -> Subject:
    """Returns a small network with clipping, batch normalization and dropout."""

    def make_model() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(5, activation="softmax"),
            ]
        )
        # Not LARS: its updates do not depend on the scale of the gradients, so it would
        # hide gradients that are N times too large. Only some norms exceed 3.
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=3.0),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def make_data(examples: int) -> Data:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(examples, 8, 8, 1)).astype("float32")
        return x, generator.integers(0, 5, examples)

    return Subject(make_model, make_data, "a small network")


def made(subject: Subject, examples: int) -> tuple[keras.Model, Data]:
    """Returns a subject's model, with its weights, and some examples for it.

    Raises:
        ValueError: If the model is not compiled, or has no weights before its first
            step.
    """
    model = subject.make_model()
    if not model.compiled:
        raise ValueError(
            "A model to check must be compiled: the check needs its loss and optimizer."
            f" Received: {model.name!r}. Call `model.compile(...)` before `fit`."
        )
    data = subject.make_data(examples)
    if not all(layer.built for layer in model._flatten_layers()):
        try:
            model(keras.tree.map_structure(lambda part: part[:1], data[0]))
        except NotImplementedError:
            pass  # A model whose `train_step` calls its layers.
        except Exception as error:
            raise ValueError(
                "A model to check must have weights before its first step, or make "
                f"them when it is called with inputs. Received: {model.name!r}, which "
                f"raises {type(error).__name__} when it is called: {error}. Call "
                "`model.build` before `fit`."
            ) from error
    return model, data


def named(data: Data) -> dict[str, Any]:
    """Returns inputs, targets and sample weights as arguments of `fit`."""
    return dict(zip(("x", "y", "sample_weight"), data, strict=False))


@contextlib.contextmanager
def default_dtypes(floats: str | None = None) -> Iterator[None]:
    """Restores Keras's default dtype and policy at the end of the context.

    Args:
        floats: The default within it. Defaults to `None`: the one before.
    """
    before = keras.config.floatx(), keras.config.dtype_policy()
    try:
        if floats is not None:
            keras.config.set_floatx(floats)
            keras.config.set_dtype_policy(floats)
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
