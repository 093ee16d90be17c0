"""A way to end trainings before their time."""

from keras_fastnet._keras.keras_api import keras


class Stop(Exception):
    pass


class StopAfter(keras.callbacks.Callback):
    """Ends a training after so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Stop
