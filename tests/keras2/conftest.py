"""Leaves this folder to `make test-legacy`, which runs it with Keras 2."""

from keras_fastnet._keras.keras_api import IS_KERAS_2

collect_ignore_glob = [] if IS_KERAS_2 else ["test_*.py"]
