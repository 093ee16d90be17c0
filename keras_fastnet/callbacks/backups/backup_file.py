"""The content and the name of a backup's file.

A mark, the length and the SHA-256 of a header, the header, and the arrays. The header
is JSON: what the backup states about itself, and the dtype, shape and CRC-32 of each
array. Files of the first two formats are a SHA-256 and NumPy's `.npz`.
"""

import hashlib
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

FORMAT = 3
"""The format that `write` is given; the first one states none."""
_MARK = b"keras_fastnet backup"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = hashlib.sha256().digest_size
_NAME = re.compile(r"epoch-\d+-batch-\d+\.backup")


def write(file: BinaryIO, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes a backup.

    The arrays are not copied, and Python is free for other threads meanwhile. Their
    checksum is CRC-32, which takes less processor time than writing them.

    Args:
        file: An empty file.
        arrays: Arrays by name. Their dtypes may be unknown to NumPy, such as bfloat16.
        about: Further content, a JSON object with the position as `"epoch"` and
            `"batch"`, and the states of `"callbacks"`.
    """
    contents = {
        name: np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for name, array in arrays.items()
    }
    kinds = {
        name: [str(array.dtype), array.shape, zlib.crc32(contents[name])]
        for name, array in arrays.items()
    }
    header = json.dumps({"about": about, "arrays": kinds}).encode()
    file.write(_MARK + _LENGTH.pack(len(header)))
    file.write(hashlib.sha256(header).digest() + header)
    for content in contents.values():
        file.write(content)


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays of a backup, by name, and what it states about itself.

    Args:
        content: A file's content.

    Raises:
        ValueError: If the content is damaged, not that of a backup, or of a later
            format.
    """
    try:
        unpacked = _unpacked if content.startswith(_MARK) else _unpacked_npz
        arrays, about = unpacked(content)
        written = about.get("format", 1)
        position = int(about["epoch"]), int(about["batch"])
        whole = isinstance(about["callbacks"], dict | list)
    except _DamagedError:
        raise
    # Whatever NumPy, `zipfile` and `json` raise for what `write` has not written.
    except Exception as error:
        raise ValueError(f"the file is not a backup: {error!r}") from error
    if written not in range(1, FORMAT + 1):
        raise ValueError(
            f"the file has format {written!r}, of a later version of keras_fastnet: "
            f"this version reads formats 1 to {FORMAT}"
        )
    if not whole or min(position) < 0:
        raise ValueError("the file is not a backup: it states no position")
    return arrays, about


class _DamagedError(ValueError):
    """Some bytes of a file are not those that were written."""

    def __init__(self) -> None:
        super().__init__("the file is damaged: its checksum is wrong")


def _unpacked(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    start = len(_MARK) + _LENGTH.size + _CHECKSUM
    if len(content) < start:
        raise _DamagedError
    (length,) = _LENGTH.unpack_from(content, len(_MARK))
    header = content[start : start + length]
    if hashlib.sha256(header).digest() != content[start - _CHECKSUM : start]:
        raise _DamagedError
    text = json.loads(header)
    arrays = {}
    left = memoryview(content)[start + length :]
    for name, (kind, shape, checksum) in text["arrays"].items():
        dtype = np.dtype(kind)
        size = dtype.itemsize * math.prod(shape)
        part, left = left[:size], left[size:]
        if len(part) != size or zlib.crc32(part) != checksum:
            raise _DamagedError
        # A copy, since the part may begin at any address.
        arrays[name] = np.ndarray(shape, dtype, part).copy()
    if left:
        raise _DamagedError
    return arrays, text["about"]


def _unpacked_npz(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    checksum, payload = content[:_CHECKSUM], content[_CHECKSUM:]
    if hashlib.sha256(payload).digest() != checksum:
        raise _DamagedError
    with np.load(io.BytesIO(payload), allow_pickle=False) as file:
        entries = {name: file[name] for name in file.files}
    text = json.loads(entries["about"].tobytes())
    arrays = {
        name: entries[name].view(np.dtype(kind)).reshape(shape)
        for name, (kind, shape) in text["arrays"].items()
    }
    return arrays, text["about"]


def file_name(epoch: int, batch: int) -> str:
    """Returns the file name of a backup.

    Args:
        epoch: Number of finished epochs.
        batch: Number of trained batches of the next epoch.
    """
    return f"epoch-{epoch:06d}-batch-{batch:09d}.backup"


def newest_first(names: Iterable[str]) -> list[str]:
    """Returns those file names that are of backups, newest first.

    Args:
        names: Names of files.
    """
    return sorted(filter(_NAME.fullmatch, names), reverse=True)
