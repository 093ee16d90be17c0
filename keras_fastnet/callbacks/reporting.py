"""What the callbacks tell the user."""

from keras_fastnet._keras.keras_api import keras


def is_chief(model: keras.Model) -> bool:
    """Returns whether this process speaks and writes for all.

    Args:
        model: The model that is being trained.
    """
    return getattr(model.distribute_strategy, "rank", 0) == 0


def say(model: keras.Model, text: str) -> None:
    """Prints a line, on the chief only.

    Args:
        model: The model that is being trained.
        text: The line.
    """
    if is_chief(model):
        print(f"fastnet: {text}", flush=True)
