"""`Subject`: the model whose updates are compared, and its data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_fastnet._keras.keras_api import keras

Data = tuple[Any, ...]


@dataclasses.dataclass
class Subject:
    """The model whose updates are compared.

    Attributes:
        make_model: Returns the compiled model. Called in the scope of a strategy.
        make_data: Returns inputs, targets and, if there are some, sample weights for
            `fit`, given the number of examples. Defaults to `None`: random data that
            fits the model's inputs and loss.
        name: The model's name in messages. Defaults to `"the model"`.
        examples_per_replica: The per-replica batch size. Defaults to `16`: with
            fewer examples, batch normalization magnifies rounding errors.
    """

    make_model: Callable[[], keras.Model]
    make_data: Callable[[int], Data] | None = None
    name: str = "the model"
    examples_per_replica: int = 16

    def data(self, model: keras.Model, examples: int) -> Data:
        """Returns inputs, targets and perhaps sample weights.

        Args:
            model: The model.
            examples: The number of examples.

        Raises:
            ValueError: If there is no `make_data` and the model has no inputs yet.
        """
        if self.make_data is not None:
            return self.make_data(examples)
        if not getattr(model, "inputs", None):
            raise ValueError(
                "Random data can be made only for models whose inputs are known. "
                f"Received: {self.name}, a {type(model).__name__}. Give `make_data`, a "
                "function from a number of examples to inputs and targets."
            )
        return _random_inputs(model, examples), _random_targets(model, examples)


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
        # hide gradients that are N times too large.
        model.compile(
            keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.1),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    return Subject(make_model, name="a small network")


def build(model: keras.Model, inputs: Any) -> None:
    """Makes the weights of layers that no data have reached yet.

    Args:
        model: The model.
        inputs: Inputs of several examples.

    Raises:
        ValueError: If the model cannot be called with them.
    """
    if all(layer.built for layer in model._flatten_layers()):
        return
    try:
        model(keras.tree.map_structure(lambda part: part[:1], inputs))
    except NotImplementedError:
        pass  # A model whose `train_step` calls its layers.
    except Exception as error:
        raise ValueError(
            "A model to check must have weights before its first step, or make them "
            f"when it is called with inputs. Received: {model.name!r}, which raises "
            f"{type(error).__name__} when it is called: {error}. Call `model.build` "
            "before `fit`."
        ) from error


def make_deterministic(model: keras.Model) -> list[str]:
    """Makes a model's step depend on nothing but its weights and the batch.

    It switches dropout and noise off and synchronizes batch normalization: in these,
    several replicas differ from one device on purpose.

    Args:
        model: The model. It is changed in place.

    Returns:
        A description of each change.
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
                # XLA cannot compile a synchronized layer on several replicas.
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
    kind = _loss_name(model.loss)

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


def _loss_name(loss: Any) -> str:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    return str(name or getattr(loss, "__name__", "")).lower()
