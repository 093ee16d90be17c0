"""The model that is checked, and the data it is checked with."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_fastnet._keras.keras_api import keras

Data = tuple[Any, Any]


@dataclasses.dataclass
class Subject:
    """The model that is checked.

    Attributes:
        make_model: Returns the model, compiled; called in the scope of a strategy.
        make_data: Returns inputs and targets of so many examples, as for `fit`.
            Defaults to `None`: random ones, after the model's inputs and its loss.
        name: What to call it.
        examples_per_replica: Of a step. Batch statistics of few values magnify
            rounding.
    """

    make_model: Callable[[], keras.Model]
    make_data: Callable[[int], Data] | None = None
    name: str = "the model"
    examples_per_replica: int = 16

    def data(self, model: keras.Model, examples: int) -> Data:
        """Returns inputs and targets.

        Args:
            model: The model.
            examples: How many.
        """
        if self.make_data is not None:
            return self.make_data(examples)
        if not getattr(model, "inputs", None):
            raise ValueError(
                "Data can be made up only for models that know their inputs. "
                f"Received: {self.name}, a {type(model).__name__}. Give `make_data`, a "
                "function from a number of examples to inputs and targets."
            )
        return _random_inputs(model, examples), _random_targets(model, examples)


def built_in() -> Subject:
    """A small network with what usually goes wrong: clipping, normalization, means."""

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
        # Not LARS, under which gradients that are N times too large look right.
        model.compile(
            keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.1),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    return Subject(make_model, name="a small network")


def without_chance(model: keras.Model) -> list[str]:
    """Makes a model's step a function of weights and batch alone.

    Dropout and noise are switched off and batch normalization synchronized: there
    several replicas differ from one device on purpose.

    Args:
        model: The model, changed in place.

    Returns:
        What was changed, for people.
    """
    changes = set()
    for layer in model._flatten_layers():
        for name in ("rate", "stddev"):
            if hasattr(layer, "seed_generator") and getattr(layer, name, None):
                setattr(layer, name, 0.0)
                changes.add(f"without {type(layer).__name__}")
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
            changes.add("BatchNormalization synchronized")
            if model.jit_compile:
                # Which cannot be, on several replicas, beside such a layer.
                model.jit_compile = False
                changes.add("without XLA")
    return sorted(changes)


def _random_inputs(model: keras.Model, examples: int) -> Any:
    generator = np.random.default_rng(0)

    def one(tensor: Any) -> np.ndarray:
        shape = (examples, *(16 if n is None else n for n in tensor.shape[1:]))
        if keras.backend.is_int_dtype(tensor.dtype):
            return generator.integers(0, 2, shape).astype(tensor.dtype)
        return generator.normal(size=shape).astype("float32")

    return keras.tree.map_structure(one, _structure(model, "input"))


def _random_targets(model: keras.Model, examples: int) -> Any:
    generator = np.random.default_rng(1)
    kind = _name_of(model.loss)

    def one(tensor: Any) -> np.ndarray:
        shape = (examples, *(16 if n is None else n for n in tensor.shape[1:]))
        if "sparse" in kind:
            return generator.integers(0, shape[-1], shape[:-1])
        if "crossentropy" in kind and shape[-1] > 1:
            classes = generator.integers(0, shape[-1], shape[:-1])
            return np.eye(shape[-1], dtype="float32")[classes]
        return generator.integers(0, 2, shape).astype("float32")

    return keras.tree.map_structure(one, _structure(model, "output"))


def _structure(model: keras.Model, side: str) -> Any:
    if isinstance(model, keras.Sequential):
        return getattr(model, f"{side}s")[0]
    return getattr(model, side)


def _name_of(loss: Any) -> str:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    return str(name or getattr(loss, "__name__", "")).lower()
