"""The sizes that a recipe is made for, and how they are read from strategy and data."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, TypeVar

from keras_fastnet.arguments import checked_integer, multiples_near
from keras_fastnet.recipes.settings import Setting, chosen, paper, rule

IMAGENET = 1_281_167
"""Training images of ImageNet-1K (ILSVRC 2012)."""

Function = TypeVar("Function", bound=Callable[..., Any])


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
        batched: Whether the data comes in batches of its own, as a dataset does.
            Defaults to `False`.
    """

    train_size: int = IMAGENET
    epochs: int | None = None
    global_batch: int | None = None
    ranks: int = 1
    device_batch: int = 32
    batched: bool = False

    @classmethod
    def of(
        cls,
        strategy: Any,
        data: Any,
        *,
        epochs: int | None,
        global_batch: int | None,
        device_batch: int | None,
        ranks: int | None,
        usual_device_batch: int = 32,
    ) -> "Sizes":
        """Returns the sizes of a training.

        Args:
            strategy: The strategy; `None` if `ranks` says how many replicas it has.
            data: The training data, or the number of examples; `None` for ImageNet's.
            epochs: Number of epochs, or `None`.
            global_batch: Examples of an update, or `None`.
            device_batch: Per-replica batch, or `None`: that of the data's batches.
            ranks: Number of replicas, or `None`: those of the strategy, or 1.
            usual_device_batch: Per-replica batch if nothing else states one. Defaults
                to 32.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If the sizes do not fit each other, or cannot be read from the
                data.
        """
        if strategy is not None:
            ranks = _replicas(strategy, ranks)
        ranks = 1 if ranks is None else ranks
        examples, batch, batched = _sizes_of_data(data)
        if batch is not None:
            device_batch = _device_batch(batch, ranks, device_batch)
        if device_batch is None:
            device_batch = usual_device_batch
        return cls(examples, epochs, global_batch, ranks, device_batch, batched)

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


def takes_old_arguments(recipe: Function) -> Function:
    """Has a recipe take the number of examples as it did at first, with a warning.

    Args:
        recipe: The function that makes the recipe.
    """

    @functools.wraps(recipe)
    def made(strategy: Any = None, data: Any = None, **others: Any) -> Any:
        if isinstance(strategy, Integral):
            strategy, others["train_size"] = None, strategy
        if "train_size" in others:
            data = others.pop("train_size")
            warnings.warn(
                "`train_size` is deprecated. Write "
                f"`{recipe.__name__}(strategy, data)`, with the number of examples or "
                "the data themselves.",
                DeprecationWarning,
                stacklevel=2,
            )
        return recipe(strategy, data, **others)

    return made  # type: ignore[return-value]


def _replicas(strategy: Any, ranks: int | None) -> int:
    replicas = getattr(strategy, "num_replicas_in_sync", None)
    if replicas is None:
        raise TypeError(
            "`strategy` must be a strategy. "
            f"Received: {strategy!r}. Pass, for example, `TorusStrategy()`, or `None` "
            "and the number of replicas as `ranks`."
        )
    if ranks not in (None, replicas):
        raise ValueError(
            "`ranks` is the number of replicas of the strategy. Received: "
            f"ranks={ranks}, and a strategy with {replicas}. Leave out `ranks`."
        )
    return replicas


def _sizes_of_data(data: Any) -> tuple[int, int | None, bool]:
    """Returns the number of examples, the batch size, and if there are batches."""
    if data is None:
        return IMAGENET, None, False
    if isinstance(data, Integral):
        return checked_integer("data", data, at_least=1), None, False
    if isinstance(getattr(data, "examples", None), int):
        return data.examples, None, True  # ImageRecords, which makes batches later
    if hasattr(data, "element_spec") and hasattr(data, "cardinality"):
        batches = int(data.cardinality())
    elif hasattr(data, "num_batches"):  # PyDataset
        batches = -1 if data.num_batches is None else data.num_batches
    else:
        return _rows(data), None, False
    if batches < 1:
        raise ValueError(
            "A recipe needs the number of training examples. Received: a dataset of "
            "unknown or infinite length, or an empty one. Pass the number in place of "
            "the data."
        )
    if hasattr(data, "element_spec"):
        batch = _rows(data.element_spec) or _rows(next(iter(data)))
    else:
        batch = _rows(data[0])
    return batches * batch, batch, True


def _rows(data: Any) -> int:
    """Returns the number of rows of a structure of arrays; 0 if it is not known."""
    rows = {_rows_of_array(array) for array in _arrays(data)} - {0}
    if len(rows) > 1 or -1 in rows:
        raise ValueError(
            "All arrays of `data` must have as many rows, and datasets must yield "
            "batches. Received: arrays of other shapes. Pass, for example, "
            "`dataset.batch(batch_size)`."
        )
    return rows.pop() if rows else 0


def _arrays(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, list | tuple):
        for part in data:
            yield from _arrays(part)
    elif data is not None:
        yield data


def _rows_of_array(array: Any) -> int:
    """Returns the number of rows, 0 if it is not known, -1 for a scalar."""
    shape = getattr(array, "shape", None)
    if shape is None:
        raise TypeError(
            "`data` must be the training data, as for `fit`, or the number of "
            f"examples. Received: {type(array).__name__}. Pass arrays, a dataset of "
            "batches or a number."
        )
    if getattr(shape, "rank", 1) is None:
        return 0
    return (shape[0] or 0) if len(shape) else -1


def _device_batch(batch: int, ranks: int, passed: int | None) -> int:
    """Returns a replica's share of a batch of the data."""
    if batch % ranks:
        raise ValueError(
            "The batches of the data must be a multiple of the number of replicas. "
            f"Received: batches of {batch:,} for {ranks} replicas. Make batches of, "
            f"for example, {multiples_near(batch, ranks)}."
        )
    if passed not in (None, batch // ranks):
        raise ValueError(
            "`device_batch` is a replica's share of a batch of the data. Received: "
            f"device_batch={passed}, and batches of {batch:,} for {ranks} replicas. "
            f"Leave it out, or make batches of {passed * ranks:,}."
        )
    return batch // ranks
