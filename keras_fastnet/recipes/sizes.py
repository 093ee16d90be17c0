"""The sizes of a training, as a recipe reads them from strategy and data."""

import dataclasses
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
        ranks: Number of replicas.
        device_batch: Per-replica batch: examples of one replica in one step.
        batched: Whether the data comes in batches of its own, as a dataset does.
    """

    train_size: int
    ranks: int
    device_batch: int
    batched: bool

    @classmethod
    def read(
        cls,
        strategy: Any,
        data: Any,
        ranks: int | None,
        device_batch: int | None,
        *,
        usual_device_batch: int,
    ) -> "Sizes":
        """Returns the sizes of a training; see the arguments of a recipe.

        Args:
            strategy: The strategy, or `None`.
            data: The training data, the number of examples, or `None`.
            ranks: Number of replicas, or `None`: those of the strategy, or 1.
            device_batch: Per-replica batch, or `None`: that of the data's batches.
            usual_device_batch: Per-replica batch if nothing else states one.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If the sizes do not fit each other, or cannot be read from the
                data.
        """
        replicas = ranks or 1
        if strategy is not None:
            replicas = strategy.num_replicas_in_sync
            if ranks not in (None, replicas):
                raise ValueError(
                    "`ranks` is the number of replicas of the strategy. Received: "
                    f"ranks={ranks}, and a strategy with {replicas}. Leave out `ranks`."
                )
        examples, batch, batched = _sizes_of_data(data)
        if batch is not None:
            device_batch = _device_batch(batch, replicas, device_batch)
        if device_batch is None:
            device_batch = usual_device_batch
        return cls(examples, replicas, device_batch, batched)

    def __post_init__(self) -> None:
        for name in ("train_size", "ranks", "device_batch"):
            checked_integer(name, getattr(self, name), at_least=1)
        if self.micro_batch > self.train_size:
            raise ValueError(
                "A step must not take more examples than the dataset has. Received: "
                f"train_size={self.train_size:,}, ranks={self.ranks}, "
                f"device_batch={self.device_batch}, so that a step takes "
                f"{self.micro_batch:,}. Lower `device_batch`."
            )

    @property
    def micro_batch(self) -> int:
        """Returns the global micro-batch, the examples of one step on all replicas."""
        return self.ranks * self.device_batch

    def checked_global_batch(self, batch: int) -> int:
        """Returns a global batch if it is a multiple of the global micro-batch.

        Args:
            batch: Examples of an update.

        Raises:
            TypeError: If it is not an integer.
            ValueError: If it is not a positive multiple.
        """
        if checked_integer("global_batch", batch, at_least=1) % self.micro_batch:
            raise ValueError(
                "`global_batch` must be a multiple of ranks x device_batch. Received: "
                f"global_batch={batch}, ranks={self.ranks}, "
                f"device_batch={self.device_batch}. Pass, for example, "
                f"{multiples_near(batch, self.micro_batch)}."
            )
        return batch


def _sizes_of_data(data: Any) -> tuple[int, int | None, bool]:
    """Returns the number of examples, the batch size, and if there are batches."""
    if data is None:
        return IMAGENET, None, False
    if isinstance(data, Integral):
        return checked_integer("data", data, at_least=1), None, False
    if isinstance(getattr(data, "examples", None), int):
        return data.examples, None, True  # ImageRecords, which makes batches later
    is_dataset = hasattr(data, "element_spec")
    if not is_dataset and not hasattr(data, "num_batches"):  # not a PyDataset
        return _rows(data), None, False
    batches = int(data.cardinality()) if is_dataset else data.num_batches or -1
    if batches < 1:
        raise ValueError(
            "A recipe needs the number of training examples. Received: a dataset of "
            "unknown or infinite length, or an empty one. Pass the number in place of "
            "the data."
        )
    batch = _rows(next(iter(data)) if is_dataset else data[0])
    return batches * batch, batch, True


def _rows(data: Any) -> int:
    """Returns the number of rows of arrays."""
    import tensorflow as tf  # `fastnet recipe` does without.

    parts = [part for part in tf.nest.flatten(data) if part is not None]
    rows = {(*getattr(part, "shape", ()), None)[0] for part in parts}
    if len(rows) != 1 or None in rows:
        raise ValueError(
            "`data` must be arrays with as many rows each, batches of them, or the "
            f"number of examples. Received: {[type(part).__name__ for part in parts]}. "
            "Pass arrays, for example, or `dataset.batch(batch_size)`."
        )
    return rows.pop()


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
