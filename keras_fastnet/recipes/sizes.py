"""The sizes of a training, as a recipe reads them from strategy and data."""

import dataclasses
from collections.abc import Iterator
from numbers import Integral
from typing import Any

from keras_fastnet.arguments import checked_integer, multiples_near

IMAGENET = 1_281_167
"""Training images of ImageNet-1K (ILSVRC 2012)."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that a recipe is made for.

    Attributes:
        train_size: Number of training examples.
        epochs: The number of epochs that was passed; `None` for the published one.
        global_batch: The examples of an update that were passed; `None` for the
            published number, or its fraction of a smaller dataset.
        ranks: Number of replicas.
        device_batch: Per-replica batch: examples of one replica in one step.
        batched: Whether the data comes in batches of its own, as a dataset does.
    """

    train_size: int
    epochs: int | None
    global_batch: int | None
    ranks: int
    device_batch: int
    batched: bool

    @classmethod
    def read(
        cls,
        strategy: Any,
        data: Any,
        *,
        epochs: int | None,
        global_batch: int | None,
        device_batch: int | None,
        ranks: int | None,
        usual_device_batch: int,
    ) -> "Sizes":
        """Returns the sizes of a training; see the arguments of a recipe.

        Args:
            strategy: The strategy, or `None`.
            data: The training data, the number of examples, or `None`.
            epochs: Number of epochs, or `None`.
            global_batch: Examples of an update, or `None`.
            device_batch: Per-replica batch, or `None`: that of the data's batches.
            ranks: Number of replicas, or `None`: those of the strategy, or 1.
            usual_device_batch: Per-replica batch if nothing else states one.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If the sizes do not fit each other, or cannot be read from the
                data.
        """
        ranks = _replicas(strategy, ranks)
        examples, batch, batched = _sizes_of_data(data)
        if batch is not None:
            device_batch = _device_batch(batch, ranks, device_batch)
        if device_batch is None:
            device_batch = usual_device_batch
        return cls(examples, epochs, global_batch, ranks, device_batch, batched)

    def __post_init__(self) -> None:
        for name in ("train_size", "ranks", "device_batch", "epochs", "global_batch"):
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


def _replicas(strategy: Any, ranks: int | None) -> int:
    if strategy is None:
        return 1 if ranks is None else ranks
    replicas = getattr(strategy, "num_replicas_in_sync", None)
    if replicas is None:
        raise TypeError(
            f"`strategy` must be a strategy. Received: {strategy!r}. Pass, for "
            "example, `TorusStrategy()`, or `None` and the number of replicas as "
            "`ranks`."
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
