"""Arrays of which each worker reads the rows of its shares only."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend, tree
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils


def dataset_of_rows(make: Callable[[Any], tf.data.Dataset], adapter: Any) -> Any:
    """Returns the dataset of global batches that Keras makes of arrays.

    Its attribute `fastnet_rows` is an `ArrayRows`, by which parts of batches are read.
    Keras's own pipeline chooses the rows, so that they are those of one device.

    Args:
        make: `ArrayDataAdapter.get_tf_dataset`.
        adapter: The `ArrayDataAdapter`.
    """
    inputs = tree.lists_to_tuples(adapter._inputs)
    if any(map(_has_rows_of_any_length, tree.flatten(inputs))):
        return make(adapter)
    numbers = copy.copy(adapter)
    numbers._inputs = np.arange(adapter._num_samples)
    arrays = ArrayRows(inputs, make(numbers))
    dataset: Any = arrays.numbers.map(arrays.read, tf.data.AUTOTUNE)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    dataset.fastnet_rows = arrays
    return dataset


def head(inputs: Any, rows: int) -> Any:
    """Returns arrays of which memory-mapped ones end after the first rows.

    Args:
        inputs: A structure of arrays.
        rows: How many of their rows are needed.
    """
    return tree.map_structure(
        lambda array: array[:rows] if _is_mapped(array) else array, inputs
    )


class ArrayRows:
    """Arrays in memory, or memory-mapped, and which of their rows make a batch.

    Args:
        inputs: A structure of arrays with equally many rows.
        numbers: A dataset of the numbers of the rows of each global batch.

    Attributes:
        numbers: The same.
        leaves: The arrays, in order; `None` for a missing one.
    """

    def __init__(self, inputs: Any, numbers: tf.data.Dataset):
        self.numbers = numbers
        with tf.device("/CPU:0"):
            self._arrays = tree.map_structure(_rows_of, inputs)
        self.leaves: list[Any | None] = tf.nest.flatten(self._arrays)

    @tf.autograph.experimental.do_not_convert
    def read(self, numbers: tf.Tensor) -> Any:
        """Returns some rows of each array, in a graph.

        Args:
            numbers: The rows' numbers.
        """
        return tf.nest.map_structure(
            lambda array: None if array is None else array.rows(numbers), self._arrays
        )


def _has_rows_of_any_length(array: Any) -> bool:
    """Returns whether an array is sparse or ragged."""
    return any(
        test(array)
        for test in (
            data_adapter_utils.is_tensorflow_ragged,
            data_adapter_utils.is_tensorflow_sparse,
            data_adapter_utils.is_jax_sparse,
            data_adapter_utils.is_scipy_sparse,
        )
    )


def _is_mapped(array: Any) -> bool:
    """Returns whether numbers lie in a memory-mapped file."""
    if not (isinstance(array, np.ndarray) and array.dtype.kind in "biuf"):
        return False
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _rows_of(array: Any) -> Any | None:
    if array is None:
        return None
    if _is_mapped(array):
        return _MappedRows(array)
    made = array_slicing.convert_to_sliceable(array, target_backend="tensorflow")
    return _TensorRows(tf.convert_to_tensor(made))


class _TensorRows:
    """Rows of an array in memory.

    Args:
        array: The array.
    """

    def __init__(self, array: tf.Tensor):
        self._array = array
        self.features = int(np.prod(array.shape[1:]))

    def rows(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns some rows, in a graph."""
        return tf.gather(self._array, numbers)

    def elements(self, numbers: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Returns single elements, by their rows and their places in the rows."""
        table = tf.reshape(self._array, [self._array.shape[0], self.features])
        return tf.gather_nd(table, tf.stack([numbers, columns], 1))


# TensorFlow would copy the whole array into memory.
class _MappedRows:
    """Rows of a memory-mapped array, which are read when they are needed.

    Args:
        array: The array.
    """

    def __init__(self, array: np.ndarray):
        self._array = array
        self.features = int(np.prod(array.shape[1:]))
        # Whether `take` reads its rows alone: it copies other arrays as a whole.
        self._plain = array.flags.c_contiguous and array.flags.aligned
        name = backend.standardize_dtype(array.dtype)
        # As Keras casts whole arrays.
        self._dtype = np.dtype(
            backend.floatx() if backend.is_float_dtype(name) else name
        )

    def rows(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns some rows, in a graph."""
        read = tf.numpy_function(self._read, [numbers], self._dtype)
        read.set_shape([numbers.shape[0], *self._array.shape[1:]])
        return read

    def elements(self, numbers: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Returns single elements, by their rows and their places in the rows."""
        return tf.numpy_function(self._look, [numbers, columns], self._dtype)

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        if self._plain:
            rows = self._array.take(numbers, axis=0)
        else:
            rows = self._array[numbers]
        return np.ascontiguousarray(rows, self._dtype)

    def _look(self, numbers: np.ndarray, columns: np.ndarray) -> np.ndarray:
        places: tuple[np.ndarray, ...] = ()
        if self._array.ndim > 1:
            places = np.unravel_index(columns, self._array.shape[1:])
        return np.asarray(self._array[(numbers, *places)], self._dtype)
