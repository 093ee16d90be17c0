"""What a recipe needs of TensorFlow and Keras: scope, loss, checks of a model."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks.progress import print_on_chief
from keras_fastnet.models.zero_gamma import last_normalizations, zero_gamma
from keras_fastnet.text import count


@contextmanager
def scope(strategy: Any, precision: str) -> Iterator[None]:
    """The scope of a strategy, if there is one, with a dtype policy."""
    policies = keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy(precision)
    try:
        with nullcontext() if strategy is None else strategy.scope():
            yield
    finally:
        policies.set_global_policy(before)


def cross_entropy(label_smoothing: float, from_logits: bool) -> keras.losses.Loss:
    """Returns the cross-entropy, for integer or one-hot labels."""
    # A loss of Keras, as which it is saved; its own takes one-hot labels only.
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=from_logits, label_smoothing=label_smoothing
    )
    loss.fn = functools.wraps(loss.fn)(functools.partial(_call_one_hot, loss.fn))
    return loss


def _call_one_hot(
    function: Callable[..., Any], labels: Any, outputs: Any, **options: Any
) -> Any:
    """Calls a loss function of one-hot labels with labels of either kind."""
    classes = outputs.shape[-1]
    if len(labels.shape) == len(outputs.shape) and labels.shape[-1] == 1 != classes:
        labels = tf.squeeze(labels, -1)
    if len(labels.shape) == len(outputs.shape) - 1:
        numbers = tf.cast(labels, tf.int32)
        right = (numbers >= 0) & (numbers < classes)
        # A row of zeros would be a loss of zero, and so hide a wrong label.
        labels = tf.where(
            right[..., None], tf.one_hot(numbers, classes, dtype=outputs.dtype), np.nan
        )
    return function(labels, outputs, **options)


def check_origin(
    model: keras.Model, strategy: Any, precision: str, recipe: str
) -> None:
    """Raises `ValueError` unless a model was built in the scope of its recipe."""
    policies = {layer.dtype_policy.name for layer in _layers(model)}
    mixed = [name for name in policies if name.startswith("mixed")]
    # Some layers, such as the last, may stay in float32.
    suits = precision in policies if precision.startswith("mixed") else not mixed
    if not suits or strategy not in (None, model.distribute_strategy):
        raise ValueError(
            "A recipe trains a model that was built with its strategy and dtype policy."
            f" Received: a model of {', '.join(sorted(policies))} in the scope of "
            f"{type(model.distribute_strategy).__name__} for {recipe} in {precision}. "
            "Build it in `with recipe.scope():`, or pass, for example, "
            f'`precision="{max(policies)}"` to {recipe}.'
        )


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def outputs_logits(model: keras.Model) -> bool:
    """Returns whether the last layer of a model has no activation."""
    last = None
    if isinstance(model, keras.Sequential):
        last = model.layers[-1]
    elif len(getattr(model, "output_names", None) or ()) == 1:
        last = model.get_layer(model.output_names[0])
    activation = getattr(last, "activation", None)
    softmax = isinstance(last, keras.layers.Softmax)
    if softmax or activation is keras.activations.softmax:
        return False
    # An `Activation` without one, for its dtype, does not tell what came before.
    weighted = getattr(last, "kernel", None) is not None or hasattr(last, "units")
    if weighted and activation in (None, keras.activations.linear):
        return True
    raise ValueError(
        "The loss of a recipe must know whether the model outputs logits. Received: a "
        f"model whose last layer, {type(last).__name__}, does not tell. Pass "
        "`from_logits=True` for logits, or `from_logits=False` for probabilities."
    )


def start_as_identity(model: keras.Model) -> None:
    """Sets zero gamma in the residual blocks of a model that is not trained."""
    normalizations = last_normalizations(model)
    gammas = [values.to_numpy(layer.gamma) for layer in normalizations]
    if not gammas:
        text = "found no residual blocks that could start as the identity"
    elif all(np.array_equal(gamma, np.ones_like(gamma)) for gamma in gammas):
        zero_gamma(model)
        text = f"{count(len(gammas), 'residual block')} start as the identity"
    else:
        text = "residual blocks stay as they are, since they are trained"
    print_on_chief(model, text)
