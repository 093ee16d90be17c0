"""The elements of one epoch, before they become the inputs of steps."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class Elements(Iterator[Any]):
    """The elements of one epoch, of which the next can be looked at first.

    Args:
        iterator: Yields them.
    """

    def __init__(self, iterator: Iterator[Any]):
        self._iterator = iterator
        self._peeked: list[Any] = []

    def __next__(self) -> Any:
        return self._peeked.pop() if self._peeked else next(self._iterator)

    def peek(self) -> Any:
        """Returns the next element without taking it."""
        if not self._peeked:
            self._peeked.append(next(self._iterator))
        return self._peeked[0]


class DatasetElements(Elements):
    """The elements of one epoch, made of those of a dataset.

    Args:
        dataset: The dataset.
        join: Makes an element of one of the dataset's. Defaults to the same.

    Attributes:
        iterator: Over the dataset.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        join: Callable[[Any], Any] = lambda element: element,
    ):
        self.iterator = iter(dataset)
        self._join = join
        self._held: tf.experimental.Optional | None = None

    def __next__(self) -> Any:
        if self._held is None:
            return self._join(next(self.iterator))
        return self._join(self.take_optional().get_value())

    def peek(self) -> Any:
        """Returns the next element without taking it."""
        self._held = self.take_optional()
        return self._join(self._held.get_value())

    def take_optional(self) -> tf.experimental.Optional:
        """Takes the next element of the dataset.

        Raises:
            StopIteration: If there is none.
        """
        held, self._held = self._held, None
        if held is None:
            held = self.iterator.get_next_as_optional()
        if not held.has_value():
            raise StopIteration
        return held
