"""The files of a folder in an object store, such as `s3://bucket/backups`."""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from keras_fastnet.callbacks.backups.remote_lock import RemoteLock


class RemoteFiles:
    """Implements `Files` for a URL, with `fsspec`.

    `fsspec` and the clients of the stores have options of their own, in environment
    variables and files: where the store is, and the credentials.

    Args:
        url: The folder.
    """

    def __init__(self, url: str):
        self._url = url
        self._opened: tuple[Any, str] | None = None
        self.lock = RemoteLock(self, url)

    @property
    def _store(self) -> tuple[Any, str]:
        """The file system, and the folder in it. Only the chief opens it."""
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs

                with _as_os_error():
                    # Other processes write there, too.
                    self._opened = url_to_fs(self._url, use_listings_cache=False)
            except ImportError as error:
                raise OSError(
                    f'{error}. Run `pip install "keras-fastnet[remote]"`, and install '
                    "the store's client, such as `s3fs` or `gcsfs`"
                ) from error
        return self._opened

    def make_folder(self) -> None:
        """Object stores have no folders."""

    def remove_folder(self) -> None:
        """Object stores have no folders."""

    def try_out(self, size: int) -> None:
        """Raises `OSError` if an object cannot be written; its size is not tried.

        Args:
            size: Bytes of a file.
        """
        name = f"trial-{secrets.token_hex(8)}"
        self.put(name, b"\0")
        self.remove(name)

    def names(self) -> list[str]:
        """Returns the names of the objects."""
        files, folder = self._store
        with _as_os_error():
            try:
                paths = files.ls(folder, detail=False, refresh=True)
            except FileNotFoundError:
                return []
        return [path.rsplit("/", 1)[-1] for path in paths]

    def read(self, name: str) -> bytes:
        """Returns the content of an object.

        Args:
            name: Its name.
        """
        files, folder = self._store
        with _as_os_error():
            return files.cat_file(f"{folder}/{name}")

    def put(self, name: str, content: bytes, *, new: bool = False) -> None:
        """Writes a small object.

        Args:
            name: Its name.
            content: Its content.
            new: Whether to raise an error if it is there. Defaults to `False`.

        Raises:
            FileExistsError: If it must be new, and is not.
        """
        files, folder = self._store
        mode = "create" if new else "overwrite"
        with _as_os_error():
            files.pipe_file(f"{folder}/{name}", content, mode=mode)

    def write(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Writes an object, which appears when it is complete.

        Args:
            name: Its name.
            pieces: Its content.

        Raises:
            OSError: If it could not be written.
        """
        files, folder = self._store
        # Clients send a file in parts, and again where that fails.
        with tempfile.NamedTemporaryFile(prefix="fastnet-") as file, _as_os_error():
            file.writelines(pieces)
            file.flush()
            files.put_file(file.name, f"{folder}/{name}")

    def remove(self, name: str) -> None:
        """Removes an object, if that is possible.

        Args:
            name: Its name.
        """
        with contextlib.suppress(OSError):
            files, folder = self._store
            with _as_os_error():
                files.rm_file(f"{folder}/{name}")

    def remove_unfinished(self) -> None:
        """Uploads that were interrupted leave no objects."""

    def record(self, name: str, text: str) -> None:
        """Does nothing: a request takes longer than small updates.

        Args:
            name: The file's name.
            text: Its content.
        """

    def close(self) -> None:
        """There is nothing to close."""


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Has the errors of clients, which have classes of their own, be `OSError`."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
