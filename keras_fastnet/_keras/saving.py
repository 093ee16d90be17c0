"""Files that several workers write to the same path."""

import contextlib
import fcntl
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.utils import file_utils
from tensorflow.python.checkpoint import checkpoint

from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.scopes import STRATEGIES
from keras_fastnet._keras.wrapping import wrap


# Scripts save on all workers, most of which share a disk. Each writes a file of its
# own beside the path and then moves it there, so that no worker waits for another, and
# a file is whole whenever it is read. Folders cannot be moved over others: those are
# the chief's.
def _save_beside_others(original, model, filepath, *args, **kwargs):
    if not _is_shared(filepath):
        return original(model, filepath, *args, **kwargs)
    given = inspect.signature(original).bind(model, filepath, *args, **kwargs).arguments
    is_folder = original.__name__ == "export" or given.get("zipped") is False
    # Only the chief writes to an object store, or asks whether to overwrite a file.
    if is_folder or "://" in os.fspath(filepath) or given.get("overwrite") is False:
        is_chief = all(strategy.rank == 0 for strategy in STRATEGIES)
        return original(model, filepath, *args, **kwargs) if is_chief else None
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
    if not _is_shared(file_prefix) or "://" in os.fspath(file_prefix):
        return original(saver, file_prefix, *args, **kwargs)
    folder = os.path.dirname(file_prefix)
    os.makedirs(os.path.abspath(folder), exist_ok=True)
    written = write_whole(
        lambda path: original(saver, path, *args, **kwargs), file_prefix
    )
    name = os.path.basename(tf.compat.as_str(written.numpy()))
    return tf.constant(os.path.join(folder, name))


@wrap(
    file_utils,
    "urlretrieve",
    stock="`get_file` on one worker finds a file that another has only begun to write.",
    until="Keras moves a file into place that it has downloaded.",
)
def _fetch_beside_others(original, url, filename, *args, **kwargs):
    if not _is_shared(filename):
        return original(url, filename, *args, **kwargs)
    return write_whole(lambda path: original(url, path, *args, **kwargs), filename)


def _is_shared(path: Any) -> bool:
    """Returns whether other workers may write to a path; an open file is no path."""
    several = any(strategy.num_workers > 1 for strategy in STRATEGIES)
    return several and isinstance(path, str | os.PathLike)


def write_whole(write: Callable[[Any], Any], given: Any) -> Any:
    """Writes files to a folder beside a path, and puts them in its place.

    Args:
        write: Writes files whose path, or the beginning of it, it is given.
        given: The path.

    Returns:
        What `write` returns.
    """
    parent, name = os.path.split(os.path.realpath(given))
    if not os.path.isdir(parent):
        # For an error with the path that was given.
        return write(given)
    indices = (".json", ".index")
    # On the same disk.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as spare:
        result = write(os.path.join(spare, name))
        with _locked(parent):
            # Indices last, when what they list is there.
            for entry in sorted(os.listdir(spare), key=lambda e: e.endswith(indices)):
                # To where a link points, if it is one.
                target = os.path.realpath(os.path.join(parent, entry))
                os.replace(os.path.join(spare, entry), target)
    return result


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Holds a folder's lock, if the file system supports locks."""
    with contextlib.ExitStack() as closed:
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            closed.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
