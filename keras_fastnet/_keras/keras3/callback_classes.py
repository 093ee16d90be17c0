"""The classes of Keras 3 that call callbacks, and that show the progress."""

from keras.src.callbacks.callback_list import CallbackList
from keras.src.callbacks.progbar_logger import ProgbarLogger

__all__ = ["CallbackList", "ProgbarLogger"]
