"""The classes of Keras 2 that call callbacks, and that show the progress."""

from keras_fastnet._keras.keras2.internals import internal

CallbackList = internal("callbacks").CallbackList
ProgbarLogger = internal("callbacks").ProgbarLogger

__all__ = ["CallbackList", "ProgbarLogger"]
