"""Files of models, when several workers save to the same path."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import STRATEGIES
from keras_fastnet._keras.wrapping import wrap


# Scripts save on all workers, most of which share a disk. Each writes a file of its
# own beside the path and then moves it there, so that no worker waits for another, and
# a file is whole whenever it is read.
def _save_beside_others(original, model, filepath, *args, **kwargs):
    workers = [strategy for strategy in STRATEGIES if strategy.num_workers > 1]
    if not workers or not isinstance(filepath, str | os.PathLike):
        return original(model, filepath, *args, **kwargs)
    is_chief = all(strategy.rank == 0 for strategy in workers)
    overwrite = args[0] if args else kwargs.get("overwrite", True)
    # Only the chief writes to an object store, or asks whether to overwrite a file.
    if "://" in os.fspath(filepath) or overwrite is False:
        return original(model, filepath, *args, **kwargs) if is_chief else None
    if original.__name__ == "export":
        os.makedirs(os.path.dirname(os.path.abspath(filepath)), exist_ok=True)
    return _write_whole(
        lambda path: original(model, path, *args, **kwargs), filepath, is_chief
    )


for _name in ("save", "save_weights", "export"):
    wrap(
        keras.Model,
        _name,
        stock="Every worker writes the same path (tensorflow#38635): damaged files.",
        until="Files are written elsewhere and then moved into place.",
    )(_save_beside_others)


# Of `tf.train.Checkpoint` and `CheckpointManager`.
@wrap(
    checkpoint.TrackableSaver,
    "save",
    stock="Every worker writes the same path (tensorflow#38635): damaged files.",
    until="Files are written elsewhere and then moved into place.",
)
def _checkpoint_beside_others(original, saver, file_prefix, *args, **kwargs):
    workers = [strategy for strategy in STRATEGIES if strategy.num_workers > 1]
    is_path = isinstance(file_prefix, str | os.PathLike)
    if not workers or not is_path or "://" in os.fspath(file_prefix):
        return original(saver, file_prefix, *args, **kwargs)
    folder = os.path.dirname(file_prefix)
    os.makedirs(os.path.abspath(folder), exist_ok=True)
    written = _write_whole(
        lambda path: original(saver, path, *args, **kwargs),
        file_prefix,
        all(strategy.rank == 0 for strategy in workers),
    )
    name = os.path.basename(tf.compat.as_str(written.numpy()))
    return tf.constant(os.path.join(folder, name))


def _write_whole(write: Callable[[Any], Any], given: Any, is_chief: bool) -> Any:
    path = os.path.realpath(given)
    parent, name = os.path.split(path)
    if not os.path.isdir(parent):
        # For an error with the path that was given.
        return write(given)
    # On the same disk.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as folder:
        result = write(os.path.join(folder, name))
        _move_entries(folder, parent, is_chief)
    return result


def _move_entries(source: str, target: str, is_chief: bool) -> None:
    """Moves what has been saved, one or several files or a folder; indices last."""
    indices = (".json", ".pb", ".index")
    for entry in sorted(os.listdir(source), key=lambda e: (e.endswith(indices), e)):
        new, old = os.path.join(source, entry), os.path.join(target, entry)
        if not os.path.isdir(new):
            # To where a link points, if it is one.
            os.replace(new, os.path.realpath(old))
        elif not _renamed(new, old) and is_chief:
            _move_entries(new, old, is_chief)


def _renamed(new: str, old: str) -> bool:
    """Moves a folder to where none is; returns whether it could."""
    try:
        os.rename(new, old)
    except OSError:
        # One is there, with the same from another worker or from an earlier time.
        return False
    return True
