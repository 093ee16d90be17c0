"""Files of models, when several workers save to the same path."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
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
    if not is_shared(filepath):
        return original(model, filepath, *args, **kwargs)
    overwrite = args[0] if args else kwargs.get("overwrite", True)
    # Only the chief writes to an object store, or asks whether to overwrite a file.
    if "://" in os.fspath(filepath) or overwrite is False:
        is_chief = all(strategy.rank == 0 for strategy in STRATEGIES)
        return original(model, filepath, *args, **kwargs) if is_chief else None
    if original.__name__ == "export":
        os.makedirs(os.path.dirname(os.path.abspath(filepath)), exist_ok=True)
    return write_whole(lambda path: original(model, path, *args, **kwargs), filepath)


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
    if not is_shared(file_prefix) or "://" in os.fspath(file_prefix):
        return original(saver, file_prefix, *args, **kwargs)
    folder = os.path.dirname(file_prefix)
    os.makedirs(os.path.abspath(folder), exist_ok=True)
    written = write_whole(
        lambda path: original(saver, path, *args, **kwargs), file_prefix
    )
    name = os.path.basename(tf.compat.as_str(written.numpy()))
    return tf.constant(os.path.join(folder, name))


def is_shared(path: Any) -> bool:
    """Returns whether other workers may write to a path; an open file is no path."""
    several = any(strategy.num_workers > 1 for strategy in STRATEGIES)
    return several and isinstance(path, str | os.PathLike)


def write_whole(write: Callable[[Any], Any], given: Any) -> Any:
    """Writes to a folder beside a path, and puts what is there in its place.

    Args:
        write: Writes a file, or a folder, whose path it is given.
        given: The path.

    Returns:
        What `write` returns.
    """
    path = os.path.realpath(given)
    parent, name = os.path.split(path)
    if not os.path.isdir(parent):
        # For an error with the path that was given.
        return write(given)
    before, stays = _identity(path), _has_to_stay(path)
    # On the same disk.
    place = path if stays else parent
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place) as spare:
        new = os.path.join(spare, name)
        result = write(new)
        with _locked(parent):
            if not os.path.isdir(new):
                _replace_entries(spare, parent)
            elif stays:
                _replace_entries(new, path)
            elif before == _identity(path):
                _replace_folder(new, path, spare)
            # Or else another worker was first, with the same.
    return result


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lets one worker at a time put files in place, if the file system has locks."""
    with contextlib.ExitStack() as closed:
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            closed.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _identity(path: str) -> Any:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _has_to_stay(folder: str) -> bool:
    """Returns whether another folder cannot take the place of this one."""
    here = os.path.realpath(os.curdir)
    return os.path.isdir(folder) and (
        os.path.ismount(folder) or os.path.commonpath([folder, here]) == folder
    )


def _replace_entries(source: str, target: str) -> None:
    """Puts each entry of a folder in place of the one in another; indices last."""
    indices = (".json", ".pb", ".index")
    for entry in sorted(os.listdir(source), key=lambda e: (e.endswith(indices), e)):
        new = os.path.join(source, entry)
        # To where a link points, if it is one.
        old = os.path.realpath(os.path.join(target, entry))
        if not os.path.isdir(new):
            os.replace(new, old)
        else:
            _replace_folder(new, old, source)


def _replace_folder(new: str, folder: str, spare: str) -> None:
    """Puts a folder in place of another, whose other entries are kept.

    As a whole: Keras numbers an exported model's variables differently on each worker.
    """
    if not os.path.isdir(folder):
        os.rename(new, folder)
        return
    old = os.path.join(tempfile.mkdtemp(dir=spare), "old")
    os.rename(folder, old)
    os.rename(new, folder)
    for entry in set(os.listdir(old)) - set(os.listdir(folder)):
        os.rename(os.path.join(old, entry), os.path.join(folder, entry))
