"""Ways to end trainings before their time."""

import os
import signal

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


class Terminate(keras.callbacks.Callback):
    """Sends its process SIGTERM after an update."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == self.update:
            os.kill(os.getpid(), signal.SIGTERM)
