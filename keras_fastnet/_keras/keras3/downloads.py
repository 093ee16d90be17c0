"""Files that a program downloads on every worker, to one path."""

from keras.src.utils import file_utils

from keras_fastnet._keras.saving import is_shared, write_whole
from keras_fastnet._keras.wrapping import wrap


@wrap(
    file_utils,
    "urlretrieve",
    stock="`get_file` on one worker finds a file that another has only begun to write.",
    until="Keras moves a file into place that it has downloaded.",
)
def _fetch_beside_others(original, url, filename, *args, **kwargs):
    if not is_shared(filename):
        return original(url, filename, *args, **kwargs)
    return write_whole(lambda path: original(url, path, *args, **kwargs), filename)
