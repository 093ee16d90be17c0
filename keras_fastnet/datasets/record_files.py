"""TFRecord files without TensorFlow: their names, and the number of their records."""

import glob
import os
import pathlib
import re
import struct

# A record is preceded by its length and the checksum of that, and followed by its own
# checksum. TensorFlow verifies both when it reads.
_HEADER = struct.Struct("<QI")
_CHECKSUM_SIZE = 4


def find_files(data_dir: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the files of a split, sorted by name.

    Args:
        data_dir: Their folder.
        split: The prefix of their names, which are `<split>-*`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If files that count themselves, as `-00000-of-00002` does, are not
            as many as they say.
    """
    pattern = f"{glob.escape(split)}-*"
    files = sorted(path for path in data_dir.glob(pattern) if path.is_file())
    if not files:
        raise FileNotFoundError(
            f"`data_dir` must be a folder with the files `{split}-*`. Received: "
            f"{data_dir}, without such a file. Pass another `split` or `data_dir`."
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


def count_records(path: pathlib.Path) -> int:
    """Counts the records of a file by their headers, without reading the records.

    Args:
        path: An uncompressed TFRecord file.

    Raises:
        ValueError: If the file is empty or does not end with a whole record.
    """
    records = position = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while size - position >= _HEADER.size:
            length, _ = _HEADER.unpack(os.pread(file.fileno(), _HEADER.size, position))
            position += _HEADER.size + length + _CHECKSUM_SIZE
            records += 1
    if position == size > 0:
        return records
    raise ValueError(
        f"A TFRecord file must consist of whole records. Received: {path}, which "
        f"{'ends within one' if size else 'is empty'}. Fetch or write the file again, "
        'unpack it if it is compressed, or pass `corrupt="skip"` to do without what '
        "cannot be read."
    )
