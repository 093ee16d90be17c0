"""Where Keras 3 saves: each worker writes whole files, without the other workers."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
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
    plain = tf.saved_model.save

    def save(trackable: Any, export_dir: Any, *more: Any, **options: Any) -> None:
        _save(
            lambda path: plain(trackable, path, *more, **options),
            export_dir,
            makes_folders=True,
        )

    # Not around the whole: it also says where it has written.
    tf.saved_model.save = save
    try:
        return original(archive, filepath, *args, **kwargs)
    finally:
        tf.saved_model.save = plain


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
    """Has this worker save by itself, whatever the other workers do.

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
    parent = os.path.dirname(os.path.realpath(path))
    if makes_folders:
        os.makedirs(parent, exist_ok=True)
    if not os.path.isdir(parent):
        # For an error with the name that was given.
        return write(given)
    existed = os.path.lexists(path)
    name = os.path.basename(path)
    # One of its own, on the same disk; weights may be several files.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as folder:
        result = write(os.path.join(folder, name))
        for entry in _last_what_names_others(folder):
            target = os.path.join(os.path.dirname(path), entry)
            _put(os.path.join(folder, entry), os.path.realpath(target), existed)
    return result


def _last_what_names_others(folder: str) -> list[str]:
    """Returns the entries: folders, then files, then indices of others."""

    def place(entry: str) -> tuple[bool, bool, str]:
        is_file = not os.path.isdir(os.path.join(folder, entry))
        return is_file, entry.endswith((".json", ".pb")), entry

    return sorted(os.listdir(folder), key=place)


def _put(new: str, target: str, existed: bool) -> None:
    """Puts a file or a folder in place of what is there."""
    if not os.path.isdir(new):
        os.replace(new, target)
        return
    if _renamed(new, target) or not existed:
        # Or another worker was first, with the same.
        return
    # What else the folder holds is not Keras's.
    for entry in _last_what_names_others(new):
        part, old = os.path.join(new, entry), os.path.join(target, entry)
        if not os.path.isdir(part):
            os.replace(part, old)
            continue
        while not _renamed(part, old):
            # Another worker may do so as well.
            with contextlib.suppress(FileNotFoundError):
                os.rename(old, tempfile.mkdtemp(dir=os.path.dirname(new)))


def _renamed(new: str, target: str) -> bool:
    """Renames a folder, unless a folder with content is there."""
    try:
        os.rename(new, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True
