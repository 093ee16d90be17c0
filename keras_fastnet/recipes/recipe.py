"""The settings of a training, and what Keras needs to train by them."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from keras_fastnet.recipes.sizes import Sizes
from keras_fastnet.schedules.decays import Decay, warmup_then_decay
from keras_fastnet.text import count, table

if TYPE_CHECKING:
    from keras_fastnet._keras.keras_api import keras
    from keras_fastnet.optimizers import LargeBatchOptimizer

_SOURCE_WIDTH = 76


class Setting(NamedTuple):
    """One value of a recipe, and its source.

    Attributes:
        value: The value.
        origin: `"paper"`: the paper states the value. `"rule"`: a rule of the paper,
            applied to your sizes. `"chosen"`: chosen by keras_fastnet, since the paper
            does not state it.
        source: Where the paper states it, or why it was chosen.
    """

    value: Any
    origin: Literal["paper", "rule", "chosen"]
    source: str

    def adapted(self, value: Any, source: str | None = None) -> "Setting":
        """Returns the setting with a value computed from it for other sizes."""
        origin = "rule" if self.origin == "paper" else self.origin
        return Setting(value, origin, self.source if source is None else source)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of a training, with the source of each.

    ```python
    recipe = sony2018(strategy, (x, y))
    with recipe.scope():
        model = keras.applications.ResNet50(weights=None)
        recipe.compile(model, metrics=["accuracy"])
    model.fit(x, y, **recipe.fit_arguments)
    ```

    `print(recipe)` shows the settings as a table. It marks values that the paper
    states, values from a rule of the paper applied to your sizes, and values chosen by
    keras_fastnet.

    Attributes:
        name: Name of the recipe, such as `"sony2018"`.
        published: The paper's result and hardware.
        sizes: The sizes that the recipe is made for.
        settings: The settings, by the names of the attributes after `strategy`.
        strategy: The strategy that trains; `None` without one.
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
        nesterov: Whether momentum is Nesterov's.
        momentum_correction: Whether momentum is rescaled when the rate changes.
        weight_decay: The weight decay, inside the gradient.
        trust_coefficient: LARS's eta.
        epsilon: LARS's epsilon.
        label_smoothing: The fraction of a label that is spread over all classes.
        zero_gamma: Whether residual blocks start as the identity
            (`keras_fastnet.models.zero_gamma`).
        precision: The dtype policy.
    """

    name: str
    published: str
    sizes: Sizes
    settings: Mapping[str, Setting]
    strategy: Any = dataclasses.field(repr=False, compare=False)
    model: str
    epochs: int
    phases: Mapping[int, int]
    method: Literal["lars", "sgd"]
    peak: float
    warmup_start: float
    warmup_epochs: float
    decay: Decay
    momentum: float
    nesterov: bool
    momentum_correction: bool
    weight_decay: float
    trust_coefficient: float
    epsilon: float
    label_smoothing: float
    zero_gamma: bool
    precision: str

    @property
    def micro_batch(self) -> int:
        """Returns the global micro-batch, which is the `batch_size` of `fit`."""
        return self.sizes.micro_batch

    def global_batch_at(self, epoch: int) -> int:
        """Returns the global batch of an epoch.

        Args:
            epoch: The epoch, from 0.
        """
        return self.phases[max(start for start in self.phases if start <= epoch)]

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
        return warmup_then_decay(
            epoch,
            peak=self.peak,
            warmup=self.warmup_epochs,
            then=self.decay,
            start=self.warmup_start,
        )

    # The methods below import TensorFlow, which `fastnet recipe` does without.

    def scope(self) -> Any:
        """Returns the context in which the model is built.

        It is the strategy's scope, with the recipe's dtype policy.
        """
        from keras_fastnet.recipes import training

        return training.scope(self.strategy, self.precision)

    def compile(
        self, model: "keras.Model", *, from_logits: bool | None = None, **arguments: Any
    ) -> None:
        """Compiles a model with the recipe's optimizer and loss.

        If the recipe says so, the residual blocks of a functional model then start as
        the identity (`keras_fastnet.models.zero_gamma`), unless they are trained.

        Args:
            model: A model with one output, a score for each class, built in
                `recipe.scope()`.
            from_logits: Whether the model outputs logits, not probabilities. Defaults
                to `None`: read from the activation of the last layer.
            **arguments: Other arguments of `model.compile`, such as `metrics`.

        Raises:
            ValueError: If the model has another dtype policy or strategy than the
                recipe, or its last layer does not tell whether it outputs logits.
        """
        from keras_fastnet.recipes import training

        training.check_origin(model, self.strategy, self.precision, self.name)
        if from_logits is None:
            from_logits = training.outputs_logits(model)
        with model.distribute_strategy.scope():
            model.compile(self.optimizer(), self.loss(from_logits), **arguments)
            if self.zero_gamma:
                training.start_as_identity(model)

    @property
    def fit_arguments(self) -> dict[str, Any]:
        """Returns arguments of `fit`: epochs, new callbacks, for arrays the batch size.

        Append your own callbacks to `fit_arguments["callbacks"]`.
        """
        arguments = {"epochs": self.epochs, "callbacks": self.callbacks()}
        if not self.sizes.batched:
            arguments["batch_size"] = self.micro_batch
        return arguments

    def optimizer(self) -> "LargeBatchOptimizer":
        """Returns the optimizer: LARS, or SGD with weight decay inside the gradient.

        SGD is LARS without the trust ratio: `v = m v + rate (g + decay w)`, `w -= v`,
        with biases and normalization layers excluded from the decay. (Keras's SGD
        applies weight decay outside the momentum, which is another formula.)
        """
        from keras_fastnet.optimizers import LARS, LargeBatchOptimizer

        inner = LARS(
            self.rate_at(0.0),
            momentum=self.momentum,
            nesterov=self.nesterov,
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

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Returns the callbacks that set the learning rate and the batch."""
        from keras_fastnet.callbacks import BatchGrowth, LearningRateWarmup

        warmup = LearningRateWarmup(
            self.peak,
            self.warmup_epochs,
            self.decay,
            start=self.warmup_start,
            momentum_correction=self.momentum_correction,
        )
        return [warmup, BatchGrowth(self.phases)]

    def loss(self, from_logits: bool = False) -> "keras.losses.Loss":
        """Returns the cross-entropy, for integer or one-hot labels.

        Args:
            from_logits: Whether the model outputs logits. Defaults to `False`.
        """
        from keras_fastnet.recipes import training

        return training.cross_entropy(self.label_smoothing, from_logits)

    def __str__(self) -> str:
        rows = [("setting", "value", "from", "source")]
        for name, setting in self.settings.items():
            words = textwrap.wrap(setting.source, _SOURCE_WIDTH)
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


_FIELDS = [field.name for field in dataclasses.fields(Recipe)]
SETTINGS = tuple(_FIELDS[_FIELDS.index("model") :])
"""Names of the settings, in the order in which they are shown."""


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{item:,} from {key}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
