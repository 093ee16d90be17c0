"""The content and the name of a backup's file."""

import hashlib
import io
import json
import pathlib
import re
import zipfile
from typing import Any, BinaryIO

import numpy as np

FORMAT = 2
"""The format that `write` is given; the first one states none."""
_ABOUT = "about"
_CHECKSUM = hashlib.sha256().digest_size
_NAME = re.compile(r"epoch-\d+-batch-\d+\.backup")


def write(file: BinaryIO, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes a backup: a checksum, then NumPy's `.npz`.

    The arrays are not copied, and Python is free for other threads meanwhile.

    Args:
        file: An empty file that can be written at any position.
        arrays: Arrays by name. Their dtypes may be unknown to NumPy, such as bfloat16.
        about: Further content, a JSON object with the position as `"epoch"` and
            `"batch"`, and the states of `"callbacks"`.
    """
    kinds = {name: [str(a.dtype), a.shape] for name, a in arrays.items()}
    text = json.dumps({"about": about, "arrays": kinds}).encode()
    file.write(bytes(_CHECKSUM))
    payload = _Hashed(file)
    # `zipfile` needs no more of a file than this one has.
    with zipfile.ZipFile(payload, "w") as archive:  # type: ignore[call-overload]
        _add(archive, _ABOUT, np.frombuffer(text, np.uint8))
        for name, array in arrays.items():
            _add(archive, name, array)
    file.seek(0)
    file.write(payload.hash.digest())


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
        header = np.lib.format.header_data_from_array_1_0(flat)
        np.lib.format.write_array_header_1_0(entry, header)
        entry.write(flat.data)


class _Hashed:
    """A file that is written from its beginning to its end, and its checksum."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays of a backup, by name, and what it states about itself.

    Args:
        content: A file's content.

    Raises:
        ValueError: If the content is damaged, not that of a backup, or of a later
            format.
    """
    checksum, payload = content[:_CHECKSUM], content[_CHECKSUM:]
    if hashlib.sha256(payload).digest() != checksum:
        raise ValueError("the file is damaged: its checksum is wrong")
    try:
        arrays, about = _unpacked(payload)
        written = about.get("format", 1)
        position = int(about["epoch"]), int(about["batch"])
        whole = isinstance(about["callbacks"], dict | list)
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


def _unpacked(payload: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(io.BytesIO(payload), allow_pickle=False) as file:
        entries = {name: file[name] for name in file.files}
    text = json.loads(entries[_ABOUT].tobytes())
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


def backups(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the backups in a folder, newest first.

    Args:
        folder: The folder; it may be missing.
    """
    found = [path for path in folder.glob("*.backup") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)
