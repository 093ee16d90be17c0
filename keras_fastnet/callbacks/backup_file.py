"""Files of backups, written atomically and with a checksum."""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
from typing import Any

import numpy as np

_ABOUT = "about"
_CHECKSUM = hashlib.sha256().digest_size
_NAME = re.compile(r"epoch-\d+-batch-\d+\.backup")


def pack(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> bytes:
    """Returns a file's content: a checksum, then NumPy's `.npz`.

    Args:
        arrays: Arrays by name. Their dtypes may be unknown to NumPy, such as bfloat16.
        about: Further content, a JSON object.
    """
    kinds = {name: [str(a.dtype), a.shape] for name, a in arrays.items()}
    text = json.dumps({"about": about, "arrays": kinds}).encode()
    entries: dict[str, Any] = {_ABOUT: np.frombuffer(text, np.uint8)}
    for name, array in arrays.items():
        entries[name] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **entries)
    return hashlib.sha256(file.getvalue()).digest() + file.getvalue()


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arguments that were passed to `pack`.

    Args:
        content: A file's content.

    Raises:
        ValueError: If the content is damaged.
    """
    checksum, payload = content[:_CHECKSUM], content[_CHECKSUM:]
    if hashlib.sha256(payload).digest() != checksum:
        raise ValueError("the file is damaged: its checksum is wrong")
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


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically, even if the power fails.

    Args:
        path: The file. Its folder is made if it is missing.
        content: The file's content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(folder: pathlib.Path, *, keep: int = 0) -> None:
    """Removes backups, and the folder if it is empty then.

    Args:
        folder: The folder.
        keep: Number of the newest backups to keep. Defaults to `0`.
    """
    for path in backups(folder)[keep:]:
        path.unlink(missing_ok=True)
    if not keep:
        for path in folder.glob("epoch-*.unfinished"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
