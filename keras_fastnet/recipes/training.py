"""What Keras needs to train by a recipe: scope, optimizer, loss, callbacks."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BatchGrowth, LearningRateWarmup
from keras_fastnet.callbacks.progress import print_on_chief
from keras_fastnet.models.zero_gamma import last_normalizations, zero_gamma
from keras_fastnet.optimizers import LARS, LargeBatchOptimizer
from keras_fastnet.text import count

if TYPE_CHECKING:
    from keras_fastnet.recipes.recipe import Recipe


@contextmanager
def scope(recipe: "Recipe") -> Iterator[None]:
    """The strategy's scope, with the recipe's dtype policy.

    Args:
        recipe: The recipe.
    """
    policies = keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy(recipe.precision)
    try:
        with nullcontext() if recipe.strategy is None else recipe.strategy.scope():
            yield
    finally:
        policies.set_global_policy(before)


def compile(
    recipe: "Recipe",
    model: keras.Model,
    from_logits: bool | None,
    arguments: Mapping[str, Any],
) -> None:
    """Compiles a model; see `Recipe.compile`.

    Args:
        recipe: The recipe.
        model: The model.
        from_logits: Whether the model outputs logits; `None` to look at its last layer.
        arguments: Other arguments of `model.compile`.

    Raises:
        ValueError: If the model does not suit the recipe.
    """
    _check_origin(recipe, model)
    if from_logits is None:
        from_logits = _outputs_logits(model)
    with model.distribute_strategy.scope():
        model.compile(recipe.optimizer(), recipe.loss(from_logits), **arguments)
        if recipe.zero_gamma:
            _start_as_identity(model)


def optimizer(recipe: "Recipe") -> LargeBatchOptimizer:
    """Returns the optimizer; see `Recipe.optimizer`.

    Args:
        recipe: The recipe.
    """
    inner = LARS(
        recipe.rate_at(0.0),
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        trust_coefficient=recipe.trust_coefficient,
        epsilon=recipe.epsilon,
        exclude_from_adaptation=None if recipe.method == "lars" else [""],
        name=recipe.method,
    )
    return LargeBatchOptimizer(
        inner,
        recipe.phases[0] // recipe.micro_batch,
        loss_scaling=recipe.precision == "mixed_float16",
    )


def callbacks(recipe: "Recipe") -> list[keras.callbacks.Callback]:
    """Returns the callbacks that set the learning rate and the batch.

    Args:
        recipe: The recipe.
    """
    warmup = LearningRateWarmup(
        recipe.peak,
        recipe.warmup_epochs,
        recipe.decay,
        start=recipe.warmup_start,
        momentum_correction=recipe.momentum_correction,
    )
    return [warmup, BatchGrowth(recipe.phases)]


def loss(label_smoothing: float, from_logits: bool) -> keras.losses.Loss:
    """Returns the cross-entropy, for integer or one-hot labels.

    Args:
        label_smoothing: The fraction of a label that is spread over all classes.
        from_logits: Whether the model outputs logits.
    """
    # A loss of Keras, as which it is saved; its own takes one-hot labels only.
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=from_logits, label_smoothing=label_smoothing
    )
    loss.fn = functools.wraps(loss.fn)(functools.partial(_of_labels, loss.fn))
    return loss


def _of_labels(
    function: Callable[..., Any], labels: Any, outputs: Any, *args: Any, **kwargs: Any
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
    return function(labels, outputs, *args, **kwargs)


def _check_origin(recipe: "Recipe", model: keras.Model) -> None:
    """Checks that a model was built in the recipe's scope."""
    policies = {layer.dtype_policy.name for layer in _layers(model)}
    if recipe.precision == "float32":
        suits = not any(name.startswith("mixed") for name in policies)
    else:  # Some layers, such as the last, may stay in float32.
        suits = recipe.precision in policies
    if policies and not suits:
        raise ValueError(
            "A recipe trains a model with its own dtype policy. Received: a model of "
            f"{', '.join(sorted(policies))} for {recipe.name} in {recipe.precision}. "
            "Build the model in `with recipe.scope():`, or pass, for example, "
            f'`precision="{max(policies)}"` to {recipe.name}.'
        )
    if recipe.strategy not in (None, model.distribute_strategy):
        raise ValueError(
            "A recipe trains a model of its own strategy. Received: a model that was "
            f"built outside the scope of {type(recipe.strategy).__name__}. Build it "
            "in `with recipe.scope():`."
        )


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def _outputs_logits(model: keras.Model) -> bool:
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


def _start_as_identity(model: keras.Model) -> None:
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
