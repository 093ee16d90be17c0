"""Makes, finds and damages files of backups."""

import zlib

import numpy as np

from keras_fastnet.callbacks.backups import backup_file


def pieces(arrays, about):
    """Returns the content of a backup."""
    kinds = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    snapshot = backup_file.Snapshot(kinds)
    for name, array in arrays.items():
        np.copyto(snapshot.arrays[name], array)
    sums = {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()}
    return snapshot.pieces(about, sums)


def backups_in(folder):
    """Returns the paths of backups, newest first."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [folder / name for name in backup_file.newest_first(names)]


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))
