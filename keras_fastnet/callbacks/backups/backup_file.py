"""The content and the name of a backup's file.

A mark, the length and the SHA-256 of a header, the header, and the arrays. The header
is JSON: what the backup states about itself, and the dtype, shape and CRC-32 of each
array. Files of the first two formats are a SHA-256 and NumPy's `.npz`.
"""

import contextlib
import hashlib
import io
import json
import math
import mmap
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

FORMAT = 3
"""The format that `about` states; the first one states none."""
BLOCK = 4096
"""Bytes of a disk's block, or a multiple of them."""
Kind = tuple[Any, tuple[int, ...]]
_MARK = b"keras_fastnet backup"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = hashlib.sha256().digest_size
_NAME = re.compile(r"epoch-\d+-batch-\d+\.backup")


class Snapshot:
    """Memory for the arrays of a backup, which the next backup uses again.

    New memory would cost more processor time than copying into it: the kernel clears
    its pages.

    Args:
        kinds: The dtype and shape of each array, by name. Dtypes may be unknown to
            NumPy, such as bfloat16.

    Attributes:
        kinds: As passed.
        arrays: The arrays, by name, to be filled.
        contents: Their bytes, by name.
    """

    def __init__(self, kinds: Mapping[str, Kind]):
        self.kinds = dict(kinds)
        self._memory = left = _pages(sum(map(_size, kinds.values())))
        self.arrays: dict[str, np.ndarray] = {}
        self.contents: dict[str, memoryview] = {}
        for name, (dtype, shape) in kinds.items():
            size = _size((dtype, shape))
            self.contents[name], left = left[:size], left[size:]
            self.arrays[name] = np.ndarray(shape, dtype, self.contents[name])

    def pieces(
        self, about: dict[str, Any], checksums: Mapping[str, int]
    ) -> list[memoryview]:
        """Returns the content of a backup's file, in pieces.

        In memory every piece begins with a page, and its size is a multiple of
        `BLOCK`, except that of the last one: so a disk can read it from there.

        Args:
            about: Further content, a JSON object with the position as `"epoch"` and
                `"batch"`, and the states of `"callbacks"`.
            checksums: The CRC-32 of the bytes of each array, by name.
        """
        kinds = {
            name: [str(np.dtype(dtype)), shape, checksums[name]]
            for name, (dtype, shape) in self.kinds.items()
        }
        text = json.dumps({"about": about, "arrays": kinds}).encode()
        start = len(_MARK) + _LENGTH.size + _CHECKSUM
        # JSON may end with spaces.
        header = text.ljust(-(-(start + len(text)) // BLOCK) * BLOCK - start)
        parts = (
            _MARK,
            _LENGTH.pack(len(header)),
            hashlib.sha256(header).digest(),
            header,
        )
        first = _pages(start + len(header))
        first[:] = b"".join(parts)
        return [first, self._memory]


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
    # Whatever NumPy, `zipfile` and `json` raise for what `Snapshot` has not written.
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
        size = _size((dtype, shape))
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


def _size(kind: Kind) -> int:
    dtype, shape = kind
    return np.dtype(dtype).itemsize * math.prod(shape)


def _pages(size: int) -> memoryview:
    """Returns memory that begins with a page."""
    # Of this process: the default is shared with its children.
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, size), flags=kind)
    # Fewer pages: less for the kernel to hold while a disk reads them.
    with contextlib.suppress(AttributeError, OSError):  # Not on every system.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size]


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
