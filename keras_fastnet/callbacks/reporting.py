"""What the callbacks tell the user."""

from typing import Any

import keras


def say(model: keras.Model, text: str) -> None:
    """Prints a line, on the chief only.

    Args:
        model: The model that is being trained.
        text: The line.
    """
    if getattr(model.distribute_strategy, "rank", 0) == 0:
        print(f"fastnet: {text}", flush=True)


def learning_rate_of(optimizer: Any) -> float:
    """Returns the present learning rate.

    Args:
        optimizer: A Keras optimizer.
    """
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
