"""Where Keras 2 saves: one worker alone, so that nothing may be a collective."""

from typing import Any

from keras_fastnet._keras.keras2.internals import internal
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.protocols import HookedStrategy
from keras_fastnet._keras.wrapping import wrap


# Reading a metric's sum asks all workers for theirs. What is saved of metrics is reset
# by the next `fit`: this worker's part will do.
@wrap(
    internal("engine.base_layer").Layer,
    "save_own_variables",
    stock="Saving a metric reads its sum, for which all workers must save together.",
    until="Never: Keras 2 has ended; goes with its support.",
)
def _own_part(original, layer, store):
    variables = layer._trainable_weights + layer._non_trainable_weights
    strategies = [getattr(v, "distribute_strategy", None) for v in variables]
    ours = any(isinstance(strategy, HookedStrategy) for strategy in strategies)
    if not ours or not isinstance(layer, keras.metrics.Metric):
        original(layer, store)
        return
    for i, variable in enumerate(variables):
        strategy: Any = variable.distribute_strategy
        store[str(i)] = strategy.experimental_local_results(variable)[0].numpy()
