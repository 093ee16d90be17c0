"""Arrays of which each worker reads the rows of its shares only."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend, tree
from keras.src.trainers.data_adapters import array_slicing

from keras_fastnet._keras.tensorflow import agreed_seed


def dataset_of_rows(make: Callable[[Any], tf.data.Dataset], adapter: Any) -> Any:
    """Returns the dataset of global batches that Keras makes of arrays.

    If its attribute `fastnet_rows`, an `ArrayRows`, exists, it reads parts of batches.
    Keras's own pipeline chooses the rows, so that they are those of one device.

    Args:
        make: `ArrayDataAdapter.get_tf_dataset`.
        adapter: The `ArrayDataAdapter`.
    """
    numbers = copy.copy(adapter)
    numbers._inputs = np.arange(adapter._num_samples)
    seed = agreed_seed() if adapter._shuffle else None
    rows = make(numbers) if seed is None else _rows_by_seed(make, numbers, seed)
    arrays = ArrayRows(tree.lists_to_tuples(adapter._inputs), rows)
    dataset: Any = rows.map(arrays.read, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    specs = tf.nest.flatten(dataset.element_spec)
    # Sparse and ragged arrays are gathered in whole batches.
    if not any(isinstance(s, tf.SparseTensorSpec | tf.RaggedTensorSpec) for s in specs):
        dataset.fastnet_rows = arrays
    return dataset


def _rows_by_seed(
    make: Callable[[Any], tf.data.Dataset], numbers: Any, seed: int
) -> tf.data.Dataset:
    """Returns the rows of each batch in an order that follows from a seed.

    Keras's own order is another one in each process where the program sets no seed.

    Args:
        make: `ArrayDataAdapter.get_tf_dataset`.
        numbers: The `ArrayDataAdapter`, of the numbers of all rows.
        seed: Equal on all workers. Each epoch has another order.
    """
    count, within_batches = numbers._num_samples, numbers._shuffle == "batch"
    numbers._shuffle = False
    batches = make(numbers)
    epochs = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)

    @tf.autograph.experimental.do_not_convert
    def shuffled(rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(rows, [seed, seed])

    @tf.autograph.experimental.do_not_convert
    def in_order(seed: tf.Tensor) -> tf.data.Dataset:
        order = shuffled(tf.range(count, dtype=tf.int64), seed)
        return batches.map(lambda rows: tf.gather(order, rows))

    if within_batches:
        made = tf.data.Dataset.zip((batches, epochs)).map(shuffled)
    else:
        made = epochs.take(1).flat_map(in_order)
    return made.with_options(batches.options())


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
    """

    def __init__(self, inputs: Any, numbers: tf.data.Dataset):
        self.numbers = numbers
        with tf.device("/CPU:0"):
            self._readers = tree.map_structure(_reader, inputs)

    @tf.autograph.experimental.do_not_convert
    def read(self, numbers: tf.Tensor) -> Any:
        """Returns some rows of each array, in a graph.

        Args:
            numbers: The rows' numbers.
        """
        return tf.nest.map_structure(
            lambda reader: None if reader is None else reader(numbers), self._readers
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


def _reader(array: Any) -> Callable[[tf.Tensor], Any] | None:
    """Returns a function that reads some rows of an array, in a graph."""
    if array is None:
        return None
    if _is_mapped(array):
        return _MappedRows(array)
    made = array_slicing.convert_to_sliceable(array, target_backend="tensorflow")
    if isinstance(made, array_slicing.TensorflowSparseWrapper):
        return lambda rows: array_slicing.slice_tensorflow_sparse_wrapper(made, rows)
    table = made if tf.is_tensor(made) else tf.convert_to_tensor(made)
    return lambda rows: tf.gather(table, rows)


# TensorFlow would copy the whole array into memory.
class _MappedRows:
    """Reads rows of a memory-mapped array when they are needed.

    Args:
        array: The array.
    """

    def __init__(self, array: np.ndarray):
        self._array = array
        # Whether `take` reads its rows alone: it copies other arrays as a whole.
        self._plain = array.flags.c_contiguous and array.flags.aligned
        name = backend.standardize_dtype(array.dtype)
        # As Keras casts whole arrays.
        self._dtype = np.dtype(
            backend.floatx() if backend.is_float_dtype(name) else name
        )

    def __call__(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns some rows, in a graph."""
        read = tf.numpy_function(self._read, [numbers], self._dtype)
        read.set_shape([numbers.shape[0], *self._array.shape[1:]])
        return read

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        if self._plain:
            rows = self._array.take(numbers, axis=0)
        else:
            rows = self._array[numbers]
        return np.ascontiguousarray(rows, self._dtype)
