"""Saving with Keras 3: each worker writes whole files, without the other workers."""

import keras
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_api, saving_lib

from keras_fastnet._keras.saving import (
    is_chief,
    save_whole,
    several_workers,
    wrap_writer,
)
from keras_fastnet._keras.wrapping import wrap


@wrap_writer(saving_lib, "save_model")
def _save_model(original, model, filepath, *args, **kwargs):
    zipped = str(filepath).endswith(".keras")
    return save_whole(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=not zipped,
    )


@wrap_writer(saving_lib, "save_weights_only")
def _save_weights(original, model, filepath, *args, **kwargs):
    return save_whole(lambda path: original(model, path, *args, **kwargs), filepath)


@wrap_writer(legacy_h5_format, "save_model_to_hdf5")
def _save_hdf5(original, model, filepath, *args, **kwargs):
    return save_whole(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=True,
    )


# The question whether to overwrite a file cannot be answered one level below, where
# `overwrite` is not known: on a shared disk the file may be one that another worker has
# just written. Each function has several names.
def _ask_on_chief(original, model, filepath, overwrite=True, *args, **kwargs):
    if not overwrite and several_workers() and not is_chief():
        return None
    return original(model, filepath, overwrite, *args, **kwargs)


for _owner, _name in (
    (saving_api, "save_model"),
    (saving_api, "save_weights"),
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
):
    wrap(
        _owner,
        _name,
        stock=(
            "With `overwrite=False` every worker asks before it overwrites, also for a "
            "file that another worker has just written."
        ),
        until="Keras saves on one worker.",
    )(_ask_on_chief)
