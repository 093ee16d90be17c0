"""A published training as a set of settings with sources."""

import dataclasses
import functools
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BatchGrowth, LearningRateWarmup
from keras_fastnet.optimizers import LARS, LargeBatchOptimizer
from keras_fastnet.recipes.settings import Setting, Sizes
from keras_fastnet.schedules.decays import Decay
from keras_fastnet.text import count, table

_SOURCE_WIDTH = 76


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of a training, with the source of each.

    `print(recipe)` shows them as a table. It marks values that the paper states, values
    from a rule of the paper applied to your sizes, and values chosen by keras_fastnet.

    Attributes:
        name: Name of the recipe, such as `"sony2018"`.
        published: The paper's result and hardware.
        sizes: The sizes that the recipe is made for.
        settings: The settings, by the names of the following attributes.
        model: Name of the model: `"resnet50"`, `"resnet101"` or `"alexnet_bn"`.
        epochs: Number of epochs.
        phases: The global batch by the epoch from which it applies.
        method: `"lars"`, or `"sgd"`: the same without the trust ratio.
        peak: The learning rate at the end of the warm-up.
        warmup_start: The learning rate at the start.
        warmup_epochs: Epochs of warm-up; may be fractional.
        decay: The decay after the warm-up: a function from the epochs since the warm-up
            to a factor of the peak.
        momentum: The momentum.
        momentum_correction: Whether momentum is rescaled when the rate changes.
        weight_decay: The weight decay, inside the gradient.
        trust_coefficient: LARS's eta.
        epsilon: LARS's epsilon.
        label_smoothing: The fraction of a label that is spread over all classes.
        zero_gamma: Whether residual blocks start as the identity
            (`keras_fastnet.models.zero_gamma`).
        precision: The dtype policy.
        grid: The grid of replicas; see `TorusStrategy`.
        wire_dtype: The dtype of gradients in transport; see `TorusStrategy`.

    Example:

    >>> from keras_fastnet.recipes import facebook2017
    >>> recipe = facebook2017(ranks=256)
    >>> recipe.phases, recipe.peak, recipe.warmup_epochs, recipe.updates_per_epoch(0)
    ({0: 8192}, 3.2, 5, 157)
    """

    name: str
    published: str
    sizes: Sizes
    settings: Mapping[str, Setting]
    model: str
    epochs: int
    phases: Mapping[int, int]
    method: Literal["lars", "sgd"]
    peak: float
    warmup_start: float
    warmup_epochs: float
    decay: Decay
    momentum: float
    momentum_correction: bool
    weight_decay: float
    trust_coefficient: float
    epsilon: float
    label_smoothing: float
    zero_gamma: bool
    precision: str
    grid: Any
    wire_dtype: Literal["bfloat16", "float16"] | None

    @classmethod
    def of(
        cls, name: str, published: str, sizes: Sizes, settings: Mapping[str, Setting]
    ) -> "Recipe":
        """Returns the recipe with the values of some settings.

        Args:
            name: Name of the recipe.
            published: The paper's result and hardware.
            sizes: The sizes that the recipe is made for.
            settings: One setting for each of the attributes from `model` on.
        """
        values = {key: setting.value for key, setting in settings.items()}
        return cls(name, published, sizes, settings, **values)

    @property
    def micro_batch(self) -> int:
        """Returns the global micro-batch, which is the `batch_size` of `fit`."""
        return self.sizes.micro_batch

    @property
    def strategy_options(self) -> dict[str, Any]:
        """Returns arguments of `TorusStrategy`, the same for any number of ranks."""
        return {"grid": self.grid, "wire_dtype": self.wire_dtype}

    def global_batch_at(self, epoch: int) -> int:
        """Returns the global batch of an epoch.

        Args:
            epoch: The epoch, from 0.
        """
        return BatchGrowth(self.phases).global_batch_at(epoch)

    def updates_per_epoch(self, epoch: int) -> int:
        """Returns the number of updates in an epoch.

        Args:
            epoch: The epoch, from 0.
        """
        return math.ceil(self.sizes.train_size / self.global_batch_at(epoch))

    def rate_at(self, epoch: float) -> float:
        """Returns the learning rate at a fractional epoch.

        Args:
            epoch: Number of epochs done; may be fractional.
        """
        return self._warmup().rate_at(epoch)

    def optimizer(self) -> LargeBatchOptimizer:
        """Returns the optimizer: LARS, or SGD with weight decay inside the gradient.

        SGD is LARS without the trust ratio: `v = m v + rate (g + decay w)`, `w -= v`,
        with biases and normalization layers excluded from the decay. (Keras's SGD
        applies weight decay outside the momentum, which is another formula.)
        """
        inner = LARS(
            self.rate_at(0.0),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            trust_coefficient=self.trust_coefficient,
            epsilon=self.epsilon,
            exclude_from_adaptation=None if self.method == "lars" else [""],
            name=self.method,
        )
        return LargeBatchOptimizer(
            inner,
            self.phases[0] // self.micro_batch,
            loss_scaling=self.precision == "mixed_float16",
        )

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that set the learning rate and the batch."""
        return [self._warmup(), BatchGrowth(self.phases)]

    def loss(self, from_logits: bool = False) -> keras.losses.Loss:
        """Returns the cross-entropy for one-hot labels.

        Args:
            from_logits: Whether the model outputs logits. Defaults to `False`.

        Raises:
            ValueError: From `fit`, if the labels are integers.
        """
        loss = keras.losses.CategoricalCrossentropy(
            from_logits=from_logits, label_smoothing=self.label_smoothing
        )
        loss.fn = functools.wraps(loss.fn)(functools.partial(_of_one_hot, loss.fn))
        return loss

    def _warmup(self) -> LearningRateWarmup:
        return LearningRateWarmup(
            self.peak,
            self.warmup_epochs,
            self.decay,
            start=self.warmup_start,
            momentum_correction=self.momentum_correction,
        )

    def __str__(self) -> str:
        rows = [("setting", "value", "from", "source")]
        for name, setting in self.settings.items():
            words = textwrap.wrap(setting.source, _SOURCE_WIDTH) or [""]
            rows.append((name, _text(setting.value), setting.origin, words[0]))
            rows += [("", "", "", line) for line in words[1:]]
        sizes = self.sizes
        return "\n".join(
            [
                f"Recipe {self.name}. Published: {self.published}.",
                f"For {sizes.train_size:,} examples, {count(sizes.ranks, 'replica')} "
                f"with {sizes.device_batch} examples each per step, "
                f"{self.updates_per_epoch(0):,} updates in the first epoch.",
                "",
                *table(rows, left=4),
            ]
        )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{item:,} from {key}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _of_one_hot(
    function: Callable[..., Any], labels: Any, outputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls a loss function; Keras's error for integer labels names ranks only."""
    integers = len(labels.shape) < len(outputs.shape) or (
        labels.shape[-1] == 1 and outputs.shape[-1] != 1
    )
    if integers:
        classes = outputs.shape[-1]
        raise ValueError(
            "The loss of a recipe needs one-hot labels, since it smooths them. "
            f"Received: labels of shape {tuple(labels.shape)} for outputs of shape "
            f"{tuple(outputs.shape)}. Convert integer labels by "
            f"`keras.utils.to_categorical(labels, {classes})`, those of a dataset by "
            f"`dataset.map(lambda x, y: (x, tf.one_hot(y, {classes})))`."
        )
    return function(labels, outputs, *args, **kwargs)
