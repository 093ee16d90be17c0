"""A folder on a disk, or in an object store that `fsspec` reaches."""

import functools
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import IO, Any

UNFINISHED = ".unfinished"
"""The end of the names of files that are being written."""


class LocalFolder:
    """A folder on a disk, whose methods raise `OSError` if they fail.

    Args:
        path: Its path.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path

    def names(self) -> list[str]:
        """Returns the names of the files, after making the folder if it is missing."""
        self._path.mkdir(parents=True, exist_ok=True)
        return os.listdir(self._path)

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        return (self._path / name).read_bytes()

    def write(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Writes a file atomically.

        Args:
            name: Its name.
            write: Called with a file, to write the content.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._path / f"{name}{UNFINISHED}"
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path / name)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        (self._path / name).unlink(missing_ok=True)


class ObjectStore:
    """A folder in an object store, such as `s3://bucket/backups`.

    `fsspec` and its clients have their own options, in environment variables and files:
    the address of the store and the credentials. The methods raise the clients' errors.

    Args:
        url: The folder.
    """

    def __init__(self, url: str):
        self._url = url

    @functools.cached_property
    def _opened(self) -> tuple[Any, str]:
        """The client, and the path of the folder in the store."""
        # It comes with the clients of stores, such as s3fs.
        from fsspec.core import url_to_fs

        # Other processes may write there, too.
        return url_to_fs(self._url, use_listings_cache=False)

    def names(self) -> list[str]:
        """Returns the names of the objects."""
        store, folder = self._opened
        try:
            found = store.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [path.rsplit("/", 1)[-1] for path in found]

    def read(self, name: str) -> bytes:
        """Returns the content of an object."""
        store, folder = self._opened
        return store.cat_file(f"{folder}/{name}")

    def write(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Writes an object, which appears when it is complete.

        Args:
            name: Its name.
            write: Called with a file, to write the content.
        """
        store, folder = self._opened
        # Clients send a file in parts, and send a part again if that fails.
        with tempfile.NamedTemporaryFile(prefix="fastnet-") as file:
            write(file)
            file.flush()
            store.put_file(file.name, f"{folder}/{name}")

    def remove(self, name: str) -> None:
        """Removes an object."""
        store, folder = self._opened
        store.rm_file(f"{folder}/{name}")


def location_of(path: str | os.PathLike) -> pathlib.Path | str:
    """Returns a folder's path, or its URL if it is one."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else pathlib.Path(text)
