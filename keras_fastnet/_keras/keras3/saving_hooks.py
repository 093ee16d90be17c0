"""Where Keras 3 saves: each worker writes whole files, without the other workers."""

import keras
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_api, saving_lib

from keras_fastnet._keras.whole_files import (
    is_chief,
    save_whole,
    several_workers,
)
from keras_fastnet._keras.wrapping import hook


# Scripts save on all workers, most of which share a disk: Keras would write one file
# from all of them at once. Each writes its own beside it, and then puts it in place.
@hook(saving_lib, "save_model")
def _save_model(original, model, filepath, *args, **kwargs):
    zipped = str(filepath).endswith(".keras")
    return save_whole(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=not zipped,
    )


@hook(saving_lib, "save_weights_only")
def _save_weights(original, model, filepath, *args, **kwargs):
    return save_whole(lambda path: original(model, path, *args, **kwargs), filepath)


@hook(legacy_h5_format, "save_model_to_hdf5")
def _save_hdf5(original, model, filepath, *args, **kwargs):
    return save_whole(
        lambda path: original(model, path, *args, **kwargs),
        filepath,
        makes_folders=True,
    )


# Whether a file may be overwritten, Keras asks where the file exists: on a shared disk
# that may be the one which another worker has just written.
def _ask_on_the_chief(original, model, filepath, overwrite=True, *args, **kwargs):
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
    hook(_owner, _name)(_ask_on_the_chief)
