"""Progress of a training: updates made, and messages printed by the chief."""

from typing import Any

from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import TrainingData
from keras_fastnet.optimizers import LargeBatchOptimizer


def updates_of(optimizer: Any) -> int:
    """Returns the number of updates that an optimizer has made.

    Args:
        optimizer: A Keras optimizer.
    """
    return int(values.to_numpy(optimizer.iterations))


def batches_per_update(optimizer: Any, data: TrainingData | None) -> int:
    """Returns the number of batches of the data in an update.

    Args:
        optimizer: A Keras optimizer.
        data: The training data; `None` if keras_fastnet does not provide them.
    """
    if data is None or not isinstance(optimizer, LargeBatchOptimizer):
        return 1
    return optimizer.accumulation_steps * data.batches_per_step


def is_chief(model: keras.Model) -> bool:
    """Returns whether this process is the one that prints and writes files.

    Args:
        model: The model that is being trained.
    """
    return getattr(model.distribute_strategy, "rank", 0) == 0


def print_on_chief(model: keras.Model, text: str) -> None:
    """Prints a line, on the chief only.

    Args:
        model: The model that is being trained.
        text: The line.
    """
    if is_chief(model):
        print(f"fastnet: {text}", flush=True)
