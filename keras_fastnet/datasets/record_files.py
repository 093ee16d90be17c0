"""TFRecord files without TensorFlow: their names, and the number of their records."""

import glob
import os
import pathlib
import re
import struct
from typing import NamedTuple

# A record is preceded by its length and the checksum of that, and followed by its own
# checksum.
_HEADER = struct.Struct("<QI")
_CHECKSUM_SIZE = 4


class RecordCount(NamedTuple):
    """The records of a file.

    Attributes:
        records: Their number.
        damage: Why no further record can be found; empty if these are all.
    """

    records: int
    damage: str


def find_files(data_dir: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the files of a split, sorted by name.

    Args:
        data_dir: Their folder.
        split: The prefix of their names, which are `<split>-*`.

    Raises:
        FileNotFoundError: If there is no such folder, or no such file in it.
        ValueError: If files that count themselves, as `-00000-of-00002` does, are not
            as many as they say.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(
            f"`data_dir` must be a folder. Received: {data_dir}, which is "
            f"{'a file' if data_dir.exists() else 'not there'}. Pass the folder that "
            f"holds the files `{split}-*`."
        )
    pattern = f"{glob.escape(split)}-*"
    files = sorted(path for path in data_dir.glob(pattern) if path.is_file())
    if not files:
        names = sorted(path.name for path in data_dir.iterdir())
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise FileNotFoundError(
            f"The files of a split must be called `<split>-*`. Received: no "
            f"`{split}-*` in {data_dir}, which holds {shown or 'nothing'}. Pass "
            "another `split` or `data_dir`."
        )
    totals = {
        int(match[1]) if (match := re.search(r"-of-(\d+)", path.name)) else None
        for path in files
    }
    if totals not in ({None}, {len(files)}):
        raise ValueError(
            "The files of a split must be those of one conversion, all that `-of-` in "
            f"their names counts. Received: {len(files):,} files from {files[0].name} "
            f"to {files[-1].name} in {data_dir}. Fetch what is missing, or move what "
            "does not belong to them elsewhere."
        )
    return files


def count_records(path: pathlib.Path) -> RecordCount:
    """Counts the records of a file by their headers, without reading the records.

    Args:
        path: An uncompressed TFRecord file.

    Returns:
        Their number, up to the first damaged header.
    """
    records = position = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            header = os.pread(file.fileno(), _HEADER.size, position)
            if len(header) < _HEADER.size:
                return RecordCount(records, "the file ends within it")
            length, checksum = _HEADER.unpack(header)
            if _masked_crc32c(header[:8]) != checksum:
                return RecordCount(records, "its header is damaged")
            position += _HEADER.size + length + _CHECKSUM_SIZE
            if position > size:
                return RecordCount(records, "the file ends within it")
            records += 1
    return RecordCount(records, "" if size else "the file is empty")


def _masked_crc32c(data: bytes) -> int:
    """Returns the checksum of some bytes, as in TFRecord files."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_crc32c_of(byte) for byte in range(256)]
