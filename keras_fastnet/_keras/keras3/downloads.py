"""Files that a program downloads on every worker, to one path."""

from keras.src.utils import file_utils

from keras_fastnet._keras.saving import is_shared, write_whole
from keras_fastnet._keras.wrapping import wrap


def _fetch_beside_others(original, source, target=".", *args, **kwargs):
    if not is_shared(target):
        return original(source, target, *args, **kwargs)
    return write_whole(lambda path: original(source, path, *args, **kwargs), target)


for _name in ("urlretrieve", "extract_archive"):
    wrap(
        file_utils,
        _name,
        stock=(
            "`get_file` on one worker reads the file that another has only begun to "
            "write."
        ),
        until="Files are written elsewhere and then moved into place.",
    )(_fetch_beside_others)
