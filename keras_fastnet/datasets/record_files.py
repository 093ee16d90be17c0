"""TFRecord files without TensorFlow: where their records are, and their checksums."""

import concurrent.futures
import os
import pathlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# Of a record: the length and its checksum before it, its own checksum after it.
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
# Disks answer slowly, and many requests at once.
_THREADS = 16


class Place(NamedTuple):
    """Where a record's bytes are in its file.

    Attributes:
        record: The record's number in the file, from 0.
        offset: Of its first byte.
        length: In bytes.
    """

    record: int
    offset: int
    length: int


class Places(NamedTuple):
    """Where all records of a file are.

    Attributes:
        places: In their order.
        damage: Why no record can be found after these; empty where the file ends.
    """

    places: list[Place]
    damage: str


def find_places(path: pathlib.Path) -> Places:
    """Finds the records of a file by their headers, without reading the records.

    Args:
        path: A TFRecord file, not compressed.

    Returns:
        The places, as far as the headers lead.
    """
    places: list[Place] = []
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return Places(places, "the file is empty")
        position = 0
        while position < size:
            header = os.pread(file.fileno(), _HEADER.size, position)
            if len(header) < _HEADER.size:
                return Places(places, "the file ends within it")
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                return Places(places, "no record begins where it should")
            offset = position + _HEADER.size
            position = offset + length + _CHECKSUM.size
            if position > size:
                return Places(places, "the file ends within it")
            places.append(Place(len(places), offset, length))
    return Places(places, "")


def count_records(path: pathlib.Path) -> int:
    """Returns the number of records in a file.

    Args:
        path: A TFRecord file, not compressed.

    Raises:
        ValueError: It is empty, ends within a record, or is no TFRecord file.
    """
    places, damage = find_places(path)
    if damage and not places:
        raise no_record_file(path)
    if damage:
        raise ValueError(
            f"A TFRecord file must consist of whole records. Received: {path}, record "
            f"{len(places)} (from 0): {damage}. Fetch or write the file again, or pass "
            '`corrupt="skip"` to do without what cannot be read.'
        )
    return len(places)


def no_record_file(path: pathlib.Path) -> ValueError:
    """Returns the error about a file that does not begin with a record.

    Args:
        path: The file.
    """
    what = "does not begin with a whole record" if path.stat().st_size else "is empty"
    return ValueError(
        f"Every file of a split must be a TFRecord file. Received: {path}, which "
        f"{what}. Fetch or write it again; unpack it if it is compressed; move it "
        "elsewhere if it is something else."
    )


def read_record(path: pathlib.Path, place: Place) -> bytes | None:
    """Returns a record, or `None` where its checksum is another.

    Args:
        path: A TFRecord file.
        place: One of its places.
    """
    with path.open("rb") as file:
        file.seek(place.offset)
        record = file.read(place.length)
        (checksum,) = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
    return record if masked_crc32c(record) == checksum else None


def read_first(path: pathlib.Path) -> bytes | None:
    """Returns a file's first record, whatever its checksum.

    Args:
        path: A TFRecord file, not compressed.

    Returns:
        The record; `None` where the file does not begin with one.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        return file.read(length) if masked_crc32c(header[:8]) == checksum else None


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files hold of some bytes.

    Slow with long ones: about 0.1 second for a megabyte.

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
    """Returns a function's results, in the order of the items.

    Args:
        function: What to call.
        items: Its arguments.
        threads: How many to call at once. Defaults to `16`.
    """
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_crc32c_of(byte) for byte in range(256)]
