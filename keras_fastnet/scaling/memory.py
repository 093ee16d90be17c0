"""Estimates the memory that a replica needs to train a Keras application."""

import contextlib
import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from keras_fastnet.errors import UsageError


def application(name: str, precision: str) -> tuple[str, Any]:
    """Returns an application's name in Keras's spelling, and a model without weights.

    Args:
        name: The name, in upper or lower case.
        precision: The dtype policy, which becomes the default.

    Raises:
        UsageError: If there is no such application.
    """
    with _silent_stderr():
        from keras_fastnet._keras.keras_api import keras

        names = [each for each in dir(keras.applications) if each[0].isupper()]
        models = {each.lower(): each for each in names}
        if name.lower() in models:
            found = models[name.lower()]
            keras.mixed_precision.set_global_policy(precision)
            return found, getattr(keras.applications, found)(weights=None)
    near = difflib.get_close_matches(name.lower(), models, n=4, cutoff=0.4)
    raise UsageError(
        "--model must be one of Keras's applications. Received: "
        f"{name}. Close to it: {', '.join(models[n] for n in near) or 'none'}."
    )


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hides messages about GPUs that TensorFlow's C++ prints at any log level."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


SLOTS = {"sgd": 0, "momentum": 1, "lars": 1, "adam": 2}
"""Values that an optimizer keeps for each weight; momentum is `SGD(momentum=0.9)`."""

_FLOAT_BYTES = 4
# Operations of TensorFlow whose output is their input, in the same memory.
_VIEWS = {
    "ExpandDims",
    "Identity",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
_NOT_COMPUTED = {"Const", "Placeholder", "ReadVariableOp"}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a replica needs in a step.

    Weights, gradients and the optimizer's state are exact. Activations are those that
    the gradients read; TensorFlow's temporary buffers are not included.

    Attributes:
        device_batch: Per-replica batch.
        precision: The dtype policy.
        optimizer: Name of the optimizer.
        weights: Bytes of all weights, with moving statistics.
        gradients: Bytes of the gradients.
        slots: Bytes that the optimizer keeps.
        accumulated: Bytes of the gradients that `LargeBatchOptimizer` accumulates.
        activations: Bytes that the forward pass keeps for the gradients.
    """

    device_batch: int
    precision: str
    optimizer: str
    weights: int
    gradients: int
    slots: int
    accumulated: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return (
            self.weights
            + self.gradients
            + self.slots
            + self.accumulated
            + self.activations
        )


def trained(model: Any) -> int:
    """Returns the number of a model's trainable parameters."""
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def memory_of(
    model: Any, device_batch: int, optimizer: str, precision: str = "float32"
) -> Memory:
    """Returns the memory that a replica needs to train a model.

    Args:
        model: The model.
        device_batch: Per-replica batch.
        optimizer: One of `SLOTS`.
        precision: The model's dtype policy. Defaults to `"float32"`.
    """
    gradients = trained(model) * _FLOAT_BYTES
    return Memory(
        device_batch=device_batch,
        precision=precision,
        optimizer=optimizer,
        weights=sum(math.prod(w.shape) for w in model.weights) * _FLOAT_BYTES,
        gradients=gradients,
        slots=SLOTS[optimizer] * gradients,
        accumulated=gradients,
        activations=_kept_bytes(model, device_batch),
    )


def _kept_bytes(model: Any, batch: int) -> int:
    """Returns the bytes of the tensors that gradients read from the forward pass."""
    import tensorflow as tf

    def traced(x: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(x, training=True))
        graph = tf.compat.v1.get_default_graph()
        forward.update(graph.get_operations())
        return tape.gradient(total, model.trainable_weights)

    forward: set[Any] = set()
    shapes = [(batch, *tensor.shape[1:]) for tensor in model.inputs]
    specs = [
        tf.TensorSpec(shape, tensor.dtype)
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    inputs = specs if len(specs) > 1 else specs[0]
    graph = tf.function(traced).get_concrete_function(inputs).graph
    kept = {}
    for operation in graph.get_operations():
        if operation in forward:
            continue
        for tensor in operation.inputs:
            while tensor.op.type in _VIEWS:
                tensor = tensor.op.inputs[0]
            if tensor.op in forward and tensor.op.type not in _NOT_COMPUTED:
                # The sizes of variables and of parts of loops are not known.
                kept[tensor.ref()] = (
                    tensor.shape.num_elements() or 0
                ) * tensor.dtype.size
    return sum(kept.values())
