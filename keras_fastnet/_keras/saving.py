"""Saving on several workers: every file and folder stays whole."""

import contextlib
import contextvars
import fcntl
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.saved_model import save as saved_model

from keras_fastnet._keras.scopes import STRATEGIES
from keras_fastnet._keras.wrapping import wrap

_INDICES = (".json", ".pb", ".index")
_writing = contextvars.ContextVar("_writing", default=False)


# Scripts save on all workers, most of which share a disk: TensorFlow and Keras would
# write one file from all of them at once. Each writes its own beside it, and then puts
# it in place.
wrap_writer = functools.partial(
    wrap,
    stock="Every worker writes the same path (tensorflow#38635): damaged files.",
    until="Files are written elsewhere and then moved into place.",
)
"""Registers a wrapper, as `wrap`, of a function that writes files."""


# A value that is a sum over the workers is still one: they save together.
@wrap_writer(checkpoint.TrackableSaver, "save")
def _save_checkpoint(original, saver, file_prefix, *args, **kwargs):
    numbered = bool(args) or kwargs.get("checkpoint_number") is not None
    if not tf.executing_eagerly() or numbered or not isinstance(file_prefix, str):
        return original(saver, file_prefix, *args, **kwargs)
    save_whole(
        lambda path: original(saver, str(path), **kwargs),
        file_prefix,
        makes_folders=True,
        alone=False,
    )
    return tf.constant(file_prefix)


@wrap_writer(saved_model, "save_and_return_nodes")
def _save_saved_model(original, trackable, export_dir, *args, **kwargs):
    return save_whole(
        lambda path: original(trackable, path, *args, **kwargs),
        export_dir,
        makes_folders=True,
    )


def several_workers() -> list[Any]:
    """Returns the strategies by which this process is one of several workers."""
    return [strategy for strategy in STRATEGIES if strategy.num_workers > 1]


def is_chief() -> bool:
    """Returns whether this worker has rank 0."""
    return all(strategy.rank == 0 for strategy in several_workers())


def save_whole(
    write: Callable[[Any], Any],
    path: Any,
    *,
    makes_folders: bool = False,
    alone: bool = True,
) -> Any:
    """Saves on this worker, beside others that may save to the same path.

    Args:
        write: Writes to a path.
        path: Where to; an open file is written as it is.
        makes_folders: Whether folders above it are made where they are missing.
            Defaults to `False`.
        alone: Whether nothing in `write` may wait for other workers. Defaults to
            `True`.
    """
    strategies = several_workers()
    # A SavedModel has a checkpoint in it.
    if not strategies or _writing.get():
        return write(path)
    with contextlib.ExitStack() as contexts:
        for strategy in strategies if alone else []:
            contexts.enter_context(strategy.fit_support.alone())
        contexts.enter_context(_being_written())
        if not isinstance(path, (str, os.PathLike)):
            return write(path)
        if _is_remote(os.fspath(path)):
            return _write_on_chief(write, path)
        return _write_whole(write, os.path.abspath(path), path, makes_folders)


@contextlib.contextmanager
def _being_written() -> Iterator[None]:
    token = _writing.set(True)
    try:
        yield
    finally:
        _writing.reset(token)


def _is_remote(path: str) -> bool:
    return "://" in path


# All workers share it, and nothing there can be put in place at once.
def _write_on_chief(write: Callable[[Any], Any], path: Any) -> Any:
    if is_chief():
        return write(path)
    with tempfile.TemporaryDirectory() as folder:
        return write(os.path.join(folder, os.path.basename(os.fspath(path))))


def _write_whole(
    write: Callable[[Any], Any], path: str, given: Any, makes_folders: bool
) -> Any:
    target = os.path.realpath(path)
    parent, name = os.path.dirname(target), os.path.basename(path)
    if makes_folders:
        os.makedirs(parent, exist_ok=True)
    if not os.path.isdir(parent):
        # For an error with the path that was given.
        return write(given)
    before, stays = _identity(target), _has_to_stay(target)
    # A folder of its own on the same disk: what is saved may be several files.
    with tempfile.TemporaryDirectory(
        prefix=f".{name}-", dir=target if stays else parent
    ) as spare:
        result = write(os.path.join(spare, name))
        new = os.path.join(spare, name)
        with _locked(parent):
            if not os.path.isdir(new):
                _replace_entries(spare, os.path.dirname(path), spare)
            elif stays:
                _replace_entries(new, target, spare)
            elif before == _identity(target):
                _replace_folder(new, target, spare)
            # Or else another worker was first, with the same.
    return result


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lets one worker at a time put files in place, where the disk knows locks."""
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
    """Whether another folder cannot take the place of this one."""
    here = os.path.realpath(os.curdir)
    return os.path.isdir(folder) and (
        os.path.ismount(folder) or os.path.commonpath([folder, here]) == folder
    )


def _replace_entries(new: str, folder: str, spare: str) -> None:
    """Puts each entry of a folder in place of the one in another; indices last."""
    entries = sorted(
        os.listdir(new), key=lambda e: (e.endswith((".json", ".pb", ".index")), e)
    )
    for entry in entries:
        target = os.path.realpath(os.path.join(folder, entry))
        _replace(os.path.join(new, entry), target, spare)


def _replace_folder(new: str, folder: str, spare: str) -> None:
    """Puts a folder in place of another, whose other entries are kept.

    As a whole: Keras numbers an exported model's variables differently on each worker.
    """
    old = _replace(new, folder, spare)
    if old is None:
        return
    for entry in set(os.listdir(old)) - set(os.listdir(folder)):
        os.rename(os.path.join(old, entry), os.path.join(folder, entry))


def _replace(new: str, target: str, spare: str) -> str | None:
    """Puts a file or a folder in place of another; returns where a folder has gone."""
    if not os.path.isdir(new):
        os.replace(new, target)
        return None
    old = None
    if os.path.exists(target):
        old = tempfile.mkdtemp(dir=spare)
        os.rename(target, old)
    os.rename(new, target)
    return old
