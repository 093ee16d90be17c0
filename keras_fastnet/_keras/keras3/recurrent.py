"""Stateful recurrent layers of Keras 3 on several replicas.

What such a layer remembers has a row for each example of the global batch. A replica
has its share only, and keeps and changes the rows of it in its own copy.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree

from keras_fastnet._keras.active_strategy import in_replica
from keras_fastnet._keras.replica_step import keras_step


def call_with_own_rows(
    layer: keras.layers.RNN,
    call: Callable[..., Any],
    sequences: Any,
    initial_state: Any = None,
    **kwargs: Any,
) -> Any:
    """Calls a layer so that it remembers the rows of this replica.

    Args:
        layer: The layer.
        call: Its method `call`.
        sequences: Of the replica's examples.
        initial_state: As `call` takes it.
        **kwargs: As `call` takes them.
    """
    strategy = in_replica()
    remembers = layer.stateful and layer.states is not None
    batch = tree.flatten(layer.states)[0].shape[0] if remembers else None
    if (
        strategy is None
        or keras_step() is None
        or batch is None
        or sequences.shape[0] == batch
    ):
        return call(sequences, initial_state, **kwargs)
    start, stop = strategy.fit_support.own_rows(batch)
    states = layer.states
    # Past Keras, which tracks what is set; before 3.11 it does not compare sizes.
    changed = {
        "states": tree.map_structure(lambda v: _Rows(v, start, stop), states),
        "_expected_batch_size": stop - start,
    }
    vars(layer).update(changed)
    try:
        return call(sequences, initial_state, **kwargs)
    finally:
        vars(layer).update(states=states, _expected_batch_size=batch)


class _Rows:
    """Some rows of a variable, as Keras reads and assigns its variables.

    Args:
        variable: Keras's.
        start: The first row.
        stop: The one after the last.
    """

    def __init__(self, variable, start, stop):
        self._variable = variable
        self._rows = slice(start, stop)

    def __tf_tensor__(self, dtype=None, name=None):
        return tf.convert_to_tensor(self._variable[self._rows], dtype, name=name)

    def assign(self, value):
        """Sets the rows.

        Args:
            value: Their values.
        """
        before, after = slice(self._rows.start), slice(self._rows.stop, None)
        value = tf.cast(value, self._variable.dtype)
        self._variable.assign(
            tf.concat([self._variable[before], value, self._variable[after]], 0)
        )
