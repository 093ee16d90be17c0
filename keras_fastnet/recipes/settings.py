"""Values of a recipe, their sources, and the sizes they are made for."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from keras_fastnet.arguments import checked_integer, multiples_near

Origin = Literal["paper", "rule", "chosen"]


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
    origin: Origin
    source: str


def paper(value: Any, source: str) -> Setting:
    """Returns a published value.

    Args:
        value: The value.
        source: Where the paper states it.
    """
    return Setting(value, "paper", source)


def rule(value: Any, source: str) -> Setting:
    """Returns a value that follows from a published rule.

    Args:
        value: The value.
        source: The rule, with its numbers, and where the paper states it.
    """
    return Setting(value, "rule", source)


def chosen(value: Any, why: str) -> Setting:
    """Returns a value chosen by keras_fastnet.

    Args:
        value: The value.
        why: The reason.
    """
    return Setting(value, "chosen", why)


IMAGENET = 1_281_167
"""Training images of ImageNet-1K (ILSVRC 2012)."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that a recipe is made for.

    Attributes:
        train_size: Number of training examples. Defaults to ImageNet's.
        epochs: Number of epochs. Defaults to `None`: the paper's.
        global_batch: Examples of an update, in the first phase. Defaults to `None`: the
            paper's; for smaller datasets, the batch that gives as many updates per
            epoch.
        ranks: Number of replicas. Defaults to 1.
        device_batch: Per-replica batch: examples of one replica in one step. Defaults
            to 32, as in Goyal et al. (arXiv 1706.02677, section 2.1).
    """

    train_size: int = IMAGENET
    epochs: int | None = None
    global_batch: int | None = None
    ranks: int = 1
    device_batch: int = 32

    def __post_init__(self) -> None:
        for name in ("train_size", "ranks", "device_batch"):
            checked_integer(name, getattr(self, name), at_least=1)
        for name in ("epochs", "global_batch"):
            if getattr(self, name) is not None:
                checked_integer(name, getattr(self, name), at_least=1)
        if self.micro_batch > self.train_size:
            raise ValueError(
                "A step must not take more examples than the dataset has. Received: "
                f"train_size={self.train_size:,}, ranks={self.ranks}, "
                f"device_batch={self.device_batch}, so that a step takes "
                f"{self.micro_batch:,}. Lower `device_batch`."
            )
        if self.global_batch is not None and self.global_batch % self.micro_batch:
            raise ValueError(
                "`global_batch` must be a multiple of ranks x device_batch. Received: "
                f"global_batch={self.global_batch}, ranks={self.ranks}, "
                f"device_batch={self.device_batch}. Pass, for example, "
                f"{multiples_near(self.global_batch, self.micro_batch)}."
            )

    @property
    def micro_batch(self) -> int:
        """Returns the global micro-batch, the examples of one step on all replicas."""
        return self.ranks * self.device_batch

    def batch(self, published: int, source: str) -> Setting:
        """Returns the global batch, a multiple of the global micro-batch.

        Args:
            published: The paper's batch, for ImageNet.
            source: Where the paper states it.
        """
        if self.global_batch is not None:
            return chosen(self.global_batch, "as passed")
        wanted = published * min(1.0, self.train_size / IMAGENET)
        steps = max(1, round(wanted / self.micro_batch))
        batch = steps * self.micro_batch
        if batch == published:
            return paper(batch, source)
        if self.train_size < IMAGENET:
            part = f"{published:,} of {IMAGENET:,} examples"
            why = f"{part}, {source}: as many updates per epoch"
        else:
            why = f"{published:,}, {source}, as a multiple of {self.micro_batch:,}"
        return rule(batch, why)

    def epochs_of(self, published: Setting) -> Setting:
        """Returns the number of epochs.

        Args:
            published: The paper's number.
        """
        if self.epochs in (None, published.value):
            return published
        return chosen(self.epochs, f"as passed; the recipe has {published.value}")

    def part(self, of_epochs: float, published: Setting, source: str) -> Setting:
        """Returns an epoch of the paper, scaled to your number of epochs.

        Args:
            of_epochs: The epoch in the paper.
            published: The paper's number of epochs.
            source: Where the paper states it.
        """
        if self.epochs in (None, published.value):
            return paper(of_epochs, source)
        epoch = of_epochs * self.epochs / published.value
        return rule(epoch, f"{of_epochs:g} of {published.value} epochs, {source}")


def nearest_batch(batch: int, known: Iterable[int]) -> int:
    """Returns the known batch with the ratio closest to 1.

    Args:
        batch: The global batch.
        known: Batches with published values.
    """
    return min(known, key=lambda other: max(other / batch, batch / other))
