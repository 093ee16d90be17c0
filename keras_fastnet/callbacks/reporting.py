"""What the callbacks tell the user."""

import keras


def say(model: keras.Model, text: str) -> None:
    """Prints a line, on the chief only.

    Args:
        model: The model that is being trained.
        text: The line.
    """
    if getattr(model.distribute_strategy, "rank", 0) == 0:
        print(f"fastnet: {text}", flush=True)
