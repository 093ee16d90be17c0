"""Files of a folder on a disk, or in an object store that `fsspec` reaches."""

import contextlib
import os
import pathlib
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

_UNFINISHED = ".unfinished"


class LocalFiles:
    """The files of a folder on a disk. Methods raise `OSError` if they fail.

    Args:
        path: The folder.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path

    def open(self) -> None:
        """Makes the folder, if it is missing."""
        self._path.mkdir(parents=True, exist_ok=True)

    def remove_unfinished(self) -> None:
        """Removes what killed processes have left in the folder."""
        for path in self._path.glob(f"*{_UNFINISHED}"):
            path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Returns the names of the files."""
        return os.listdir(self._path)

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        # Without waiting, should it be a pipe.
        number = os.open(self._path / name, os.O_RDONLY | os.O_NONBLOCK)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise OSError("it is not a regular file")
            return file.read()

    def write(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Writes a file atomically, even if the power fails.

        Args:
            name: Its name.
            write: Called with a file, to write the content.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._path / f"{name}-{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        # So that the name, too, is on the disk.
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the folder, if it is empty."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


class RemoteFiles(LocalFiles):
    """The objects of a folder in an object store, such as `s3://bucket/backups`.

    `fsspec` and its clients have their own options, in environment variables and files:
    the address of the store and the credentials.

    Args:
        url: The folder.
    """

    def __init__(self, url: str):
        self._url = url
        self._store: Any = None
        self._folder = ""

    def open(self) -> None:
        """Connects to the store, which has no folders."""
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise OSError(
                f"{error}. Install the client of the store, which brings fsspec: "
                "`pip install s3fs` or `pip install gcsfs`"
            ) from error
        with _raising_os_error():
            # Other processes may write there, too.
            self._store, self._folder = url_to_fs(self._url, use_listings_cache=False)

    def remove_unfinished(self) -> None:
        """Does nothing, since the store has no unfinished objects."""

    def names(self) -> list[str]:
        """Returns the names of the objects."""
        with contextlib.suppress(FileNotFoundError), _raising_os_error():
            found = self._store.ls(self._folder, detail=False)
            return [path.rsplit("/", 1)[-1] for path in found]
        return []

    def read(self, name: str) -> bytes:
        """Returns the content of an object."""
        with _raising_os_error():
            return self._store.cat_file(f"{self._folder}/{name}")

    def write(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Writes an object, which appears when it is complete.

        Args:
            name: Its name.
            write: Called with a file, to write the content.
        """
        # Clients send a file in parts, and send a part again if that fails.
        with tempfile.NamedTemporaryFile(prefix="fastnet-") as file:
            write(file)
            file.flush()
            with _raising_os_error():
                self._store.put_file(file.name, f"{self._folder}/{name}")

    def remove(self, name: str) -> None:
        """Removes an object, if it is there."""
        with contextlib.suppress(FileNotFoundError), _raising_os_error():
            self._store.rm_file(f"{self._folder}/{name}")

    def close(self) -> None:
        """Does nothing, since the store has no folders."""


@contextlib.contextmanager
def _raising_os_error() -> Iterator[None]:
    """Raises `OSError` for errors of clients, which have their own classes."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def location_of(path: str | os.PathLike) -> pathlib.Path | str:
    """Returns a folder's path, or its URL if it is one."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else pathlib.Path(text)
