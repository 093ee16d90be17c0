"""The content and the name of a backup's file, which NumPy alone can read.

It is an uncompressed `.npz` archive. Each array has the path of its variable as its
name, and `backup.json` states the rest. The archive holds a CRC-32 of every entry, so a
damaged file is recognized.
"""

import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np

_ABOUT = "backup.json"
_NAME = re.compile(r"epoch-\d+-batch-\d+\.npz")
# Booleans, integers, floating-point and complex numbers.
_PLAIN_KINDS = "biufc"


def write(
    file: IO[bytes],
    arrays: Iterable[tuple[str, str, np.ndarray]],
    about: Mapping[str, Any],
) -> None:
    """Writes a backup.

    Args:
        file: Where to write it.
        arrays: The name of each array in the training's state, the path of its
            variable, and the array.
        about: What the backup states about itself: a JSON object with the position as
            `"epoch"` and `"batch"`, and objects as `"callbacks"` and `"parts"`.
    """
    entries: dict[str, list[str]] = {}
    contents: dict[str, Any] = {}
    for name, path, array in arrays:
        # Paths may repeat.
        entry = name if path in contents else path
        entries[name] = [entry, array.dtype.name]
        if array.dtype.kind not in _PLAIN_KINDS:
            # NumPy has no bfloat16, for example: the file holds its bits.
            array = array.view(f"u{array.itemsize}")
        contents[entry] = array
    contents[_ABOUT] = np.array(json.dumps({"entries": entries, **about}))
    np.savez(file, **contents)


def read(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays of a backup, by name, and what it states about itself.

    Args:
        content: A file's content. It is not trusted: it cannot have objects made.

    Raises:
        ValueError: If it is not an intact backup.
    """
    try:
        # Reading an entry to its end verifies its CRC-32.
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            about = json.loads(str(file[_ABOUT]))
            if not all(type(about[name]) is int for name in ("epoch", "batch")):
                raise TypeError("`epoch` and `batch` must be integers")
            arrays = {
                name: file[entry].view(dtype)
                for name, (entry, dtype) in about["entries"].items()
            }
    # Whatever NumPy, `zipfile` and `json` raise for other content than `write`'s.
    except Exception as error:
        raise ValueError(f"the file is damaged or not a backup: {error!r}") from error
    return arrays, about


def file_name(epoch: int, batch: int) -> str:
    """Returns the file name of a backup.

    Args:
        epoch: Number of finished epochs.
        batch: Number of trained batches of the next epoch.
    """
    return f"epoch-{epoch:06d}-batch-{batch:09d}.npz"


def newest_first(names: Iterable[str]) -> list[str]:
    """Returns those file names that are of backups, newest first.

    Args:
        names: Names of files.
    """
    return sorted(filter(_NAME.fullmatch, names), reverse=True)
