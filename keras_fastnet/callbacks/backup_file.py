"""The content and the name of a backup's file."""

import hashlib
import io
import json
import pathlib
import re
from typing import Any

import numpy as np

FORMAT = 2
"""The format that `pack` is given; the first one states none."""
_ABOUT = "about"
_CHECKSUM = hashlib.sha256().digest_size
_NAME = re.compile(r"epoch-\d+-batch-\d+\.backup")


def pack(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> bytes:
    """Returns a file's content: a checksum, then NumPy's `.npz`.

    Args:
        arrays: Arrays by name. Their dtypes may be unknown to NumPy, such as bfloat16.
        about: Further content, a JSON object with the position as `"epoch"` and
            `"batch"`, and the states of `"callbacks"`.
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
    # Whatever NumPy, `zipfile` and `json` raise for what `pack` has not written.
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
