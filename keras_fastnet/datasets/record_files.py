"""TFRecord files without TensorFlow: names, positions and checksums of records."""

import concurrent.futures
import glob
import os
import pathlib
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

# A record is preceded by its length and the checksum of that, and followed by its own
# checksum.
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
# Many, since disks serve many slow requests at once.
_THREADS = 16


class RecordSpan(NamedTuple):
    """Position of a record in its file.

    Attributes:
        record: The record's number in the file, from 0.
        offset: The file's byte at which it begins.
        length: Its length in bytes.
    """

    record: int
    offset: int
    length: int


class RecordSpans(NamedTuple):
    """Positions of all records of a file.

    Attributes:
        spans: The positions, in order.
        damage: Why no further record can be found; empty if these are all.
    """

    spans: list[RecordSpan]
    damage: str


def find_files(data_dir: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the files of a split, sorted by name.

    Args:
        data_dir: Their folder.
        split: The prefix of their names, which are `<split>-*`.

    Raises:
        FileNotFoundError: If there is no such folder, or no such file in it.
        ValueError: If files that count themselves, as `-00000-of-00002` does, are not
            all files of one conversion.
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
    _check_shards(files)
    return files


def _check_shards(files: Sequence[pathlib.Path]) -> None:
    found = [re.search(r"-(\d+)-of-(\d+)", path.name) for path in files]
    shards = [(int(match[1]), int(match[2])) for match in found if match]
    if not shards:
        return
    totals = sorted({total for _, total in shards})
    problem = ""
    if len(totals) > 1:
        problem = f"files of {' and of '.join(f'{total:,}' for total in totals)}"
    elif len(shards) < len(files):
        problem = f"also {files[found.index(None)].name}"
    elif sorted(number for number, _ in shards) != [*range(totals[0])]:
        missing = sorted({*range(totals[0])} - {number for number, _ in shards})
        problem = f"{len(shards):,} of {totals[0]:,} files"
        if missing:
            problem += f", without {missing[0]:05}-of-{totals[0]:05}"
    if problem:
        raise ValueError(
            "The files of a split must be those of one conversion, all that `-of-` in "
            f"their names counts. Received: {problem} in {files[0].parent}. Fetch what "
            "is missing, or move what does not belong to them elsewhere."
        )


def find_spans(path: pathlib.Path) -> RecordSpans:
    """Finds the records of a file by their headers, without reading the records.

    Args:
        path: An uncompressed TFRecord file.

    Returns:
        The positions, up to the first damaged header.
    """
    spans: list[RecordSpan] = []
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return RecordSpans(spans, "the file is empty")
        position = 0
        while position < size:
            header = os.pread(file.fileno(), _HEADER.size, position)
            if len(header) < _HEADER.size:
                return RecordSpans(spans, "the file ends within it")
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                return RecordSpans(spans, "the header of the next record is damaged")
            offset = position + _HEADER.size
            position = offset + length + _CHECKSUM.size
            if position > size:
                return RecordSpans(spans, "the file ends within it")
            spans.append(RecordSpan(len(spans), offset, length))
    return RecordSpans(spans, "")


def count_records(path: pathlib.Path) -> int:
    """Returns the number of records in a file.

    Args:
        path: An uncompressed TFRecord file.

    Raises:
        ValueError: If it is empty, ends within a record, or is not a TFRecord file.
    """
    spans, damage = find_spans(path)
    if damage and not spans:
        raise no_record_file(path)
    if damage:
        raise ValueError(
            f"A TFRecord file must consist of whole records. Received: {path}, record "
            f"{len(spans)} (from 0): {damage}. Fetch or write the file again, or pass "
            '`corrupt="skip"` to do without what cannot be read.'
        )
    return len(spans)


def no_record_file(path: pathlib.Path) -> ValueError:
    """Returns the error for a file that does not start with a record.

    Args:
        path: The file.
    """
    what = "does not start with a whole record" if path.stat().st_size else "is empty"
    return ValueError(
        f"Every file of a split must be a TFRecord file. Received: {path}, which "
        f"{what}. Fetch or write it again; unpack it if it is compressed; move it "
        "elsewhere if it is something else."
    )


def read_record(path: pathlib.Path, span: RecordSpan) -> bytes | None:
    """Returns a record, or `None` if its checksum is wrong.

    Args:
        path: A TFRecord file.
        span: Position of the record.
    """
    with path.open("rb") as file:
        file.seek(span.offset)
        record = file.read(span.length)
        (checksum,) = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
    return record if masked_crc32c(record) == checksum else None


def read_first(path: pathlib.Path) -> bytes | None:
    """Returns a file's first record, whatever its checksum.

    Args:
        path: An uncompressed TFRecord file.

    Returns:
        The record; `None` if the file does not start with one.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        return file.read(length) if masked_crc32c(header[:8]) == checksum else None


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum of some bytes, as in TFRecord files.

    Slow for many bytes: about 0.1 second for a megabyte.

    Args:
        data: The bytes.
    """
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def in_threads(
    function: Callable[[Any], Any], items: Iterable[Any], threads: int = _THREADS
) -> list[Any]:
    """Returns the results of a function for several items, computed in threads.

    Args:
        function: The function.
        items: Its arguments.
        threads: Number of threads. Defaults to `16`.

    Returns:
        The results, in the order of the items.
    """
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_crc32c_of(byte) for byte in range(256)]
