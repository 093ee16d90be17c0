"""Where Keras 3 saves: each worker writes whole files, without the other workers."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras

# By this name Keras imports it too, which replaces what `tf.saved_model` was.
import tensorflow.saved_model as saved_model
from keras.src.backend.tensorflow.export import TFExportArchive
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_api, saving_lib
from keras.src.utils import file_utils

from keras_fastnet._upstream.hooking import hook
from keras_fastnet._upstream.made_in_scope import STRATEGIES


# Scripts save on all workers, most of which share a disk: Keras would write one file
# from all of them at once. Each writes its own beside it, and then puts it in place.
@hook(saving_lib, "save_model")
def _save_model(original, model, filepath, *args, **kwargs):
    zipped = str(filepath).endswith(".keras")
    return _save(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=not zipped,
    )


@hook(saving_lib, "save_weights_only")
def _save_weights(original, model, filepath, *args, **kwargs):
    return _save(lambda path: original(model, path, *args, **kwargs), filepath)


@hook(legacy_h5_format, "save_model_to_hdf5")
def _save_hdf5(original, model, filepath, *args, **kwargs):
    return _save(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=True,
    )


# The class that writes, which is another one in early Keras 3.
_Archive: Any = (
    TFExportArchive
    if hasattr(TFExportArchive, "write_out")
    else keras.export.ExportArchive
)


@hook(_Archive, "write_out")
def _export(original, archive, filepath, *args, **kwargs):
    plain = saved_model.save

    def save(trackable: Any, export_dir: Any, *more: Any, **options: Any) -> None:
        _save(
            lambda path: plain(trackable, path, *more, **options),
            export_dir,
            makes_folders=True,
        )

    # Not around the whole: it also says where it has written.
    saved_model.save = save
    try:
        return original(archive, filepath, *args, **kwargs)
    finally:
        saved_model.save = plain


# Whether a file may be overwritten, Keras asks where the file exists: on a shared disk
# that may be the one which another worker has just written.
def _ask_on_the_chief(original, model, filepath, overwrite=True, *args, **kwargs):
    if not overwrite and _several_workers() and not _is_chief():
        return None
    return original(model, filepath, overwrite, *args, **kwargs)


for _owner, _name in (
    (saving_api, "save_model"),
    (saving_api, "save_weights"),
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
):
    hook(_owner, _name)(_ask_on_the_chief)


def _several_workers() -> list[Any]:
    return [strategy for strategy in STRATEGIES if strategy.num_workers > 1]


def _is_chief() -> bool:
    return all(strategy.rank == 0 for strategy in _several_workers())


def _save(
    write: Callable[[Any], Any], path: Any, *, makes_folders: bool = False
) -> Any:
    """Saves on this worker, whatever the other workers do.

    Args:
        write: Writes to a path.
        path: Where to; an open file is written as it is.
        makes_folders: Whether folders above it are made where they are missing.
            Defaults to `False`.
    """
    strategies = _several_workers()
    if not strategies:
        return write(path)
    with contextlib.ExitStack() as alone:
        for strategy in strategies:
            alone.enter_context(strategy.alone())
        if not isinstance(path, (str, os.PathLike)):
            return write(path)
        if file_utils.is_remote_path(os.fspath(path)):
            # All workers share it, and nothing there can be put in place at once.
            return write(path) if _is_chief() else None
        return _write_whole(write, os.path.abspath(path), path, makes_folders)


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
        if not os.path.isdir(new):
            _replace_entries(spare, os.path.dirname(path), spare)
        elif stays:
            _replace_entries(new, target, spare)
        elif before == _identity(target):
            _replace_folder(new, target, spare)
        # Or else another worker was first, with the same.
    return result


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
    entries = sorted(os.listdir(new), key=lambda e: (e.endswith((".json", ".pb")), e))
    for entry in entries:
        target = os.path.realpath(os.path.join(folder, entry))
        _replace(os.path.join(new, entry), target, spare)


def _replace_folder(new: str, folder: str, spare: str) -> None:
    """Puts a folder in place of another, whose other entries are kept.

    As a whole: Keras numbers an exported model's variables differently on each worker.
    """
    for old in _replace(new, folder, spare):
        for entry in set(os.listdir(old)) - set(os.listdir(folder)):
            os.rename(os.path.join(old, entry), os.path.join(folder, entry))


def _replace(new: str, old: str, spare: str) -> list[str]:
    """Puts a file or a folder in place of another; returns where that has gone to."""
    if not os.path.isdir(new):
        os.replace(new, old)
        return []
    gone: list[str] = []
    # Another worker may do so at the same time.
    while not _renamed(new, old):
        place = tempfile.mkdtemp(dir=spare)
        with contextlib.suppress(FileNotFoundError):
            os.rename(old, place)
            gone.append(place)
    return gone


def _renamed(new: str, target: str) -> bool:
    """Renames a folder, unless there is one with content."""
    try:
        os.rename(new, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True
