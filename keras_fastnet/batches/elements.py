"""The elements of one epoch, before they become the inputs of steps."""

import operator
from collections.abc import Callable, Iterator, Sequence
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
        dataset: It has elements for this worker's devices in turn.
        devices: Number of devices. Defaults to 1.
        join: Makes an element of those for the devices. Defaults to the first.

    Attributes:
        iterator: Over the dataset.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        devices: int = 1,
        join: Callable[[Sequence[Any]], Any] = operator.itemgetter(0),
    ):
        self.iterator = iter(dataset)
        self._others = range(devices - 1)
        self._join = join
        self._held: list[tf.experimental.Optional] = []

    def __next__(self) -> Any:
        if self._held:
            element, self._held = self.peek(), []
            return element
        first = next(self.iterator)
        return self._join([first, *(next(self.iterator) for _ in self._others)])

    def peek(self) -> Any:
        """Returns the next element without taking it."""
        self._held = self.take_optionals()
        return self._join([part.get_value() for part in self._held])

    def take_optionals(self) -> list[tf.experimental.Optional]:
        """Takes the next element, and returns its parts for the devices.

        Raises:
            StopIteration: If there is none.
        """
        if self._held:
            held, self._held = self._held, []
            return held
        first = self.iterator.get_next_as_optional()
        if not first.has_value():
            raise StopIteration
        return [first, *(self.iterator.get_next_as_optional() for _ in self._others)]
