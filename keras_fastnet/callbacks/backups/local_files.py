"""The files of a folder on a disk, or on a network file system."""

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import stat
from collections.abc import Sequence
from typing import BinaryIO

from keras_fastnet.callbacks.backups.backup_file import BLOCK
from keras_fastnet.callbacks.backups.folder_lock import FolderLock

# Errors of `posix_fallocate` where the file system or an emulation lacks it.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Errors of `fcntl` and `write` where the file system cannot write past its cache.
_NO_DIRECT_WRITES = (errno.EINVAL, errno.EOPNOTSUPP)
_BYTES_OF_A_WRITE = 16 << 20
# Ends the name of a file that is being written.
_UNFINISHED = ".unfinished"


class LocalFiles:
    """Implements `Files` for a path.

    Args:
        path: The folder.
        shared: Whether it has a lock.
    """

    def __init__(self, path: pathlib.Path, *, shared: bool):
        self._path = path
        self.lock = FolderLock(path) if shared else None
        self._recording: int | None = None

    def make_folder(self) -> None:
        """Makes the folder, if it is missing."""
        self._path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self) -> None:
        """Removes the folder, if it is empty."""
        with contextlib.suppress(OSError):
            self._path.rmdir()

    def try_out(self, size: int) -> None:
        """Raises `OSError` if a file of a size cannot be written.

        Args:
            size: Bytes of the file.
        """
        path = self._path / f"trial-{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            with _new_file(path) as file:
                file.write(b"\0")
                file.flush()
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    if error.errno not in _NO_ALLOCATION:
                        raise
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Returns the names of the files."""
        return [path.name for path in self._path.glob("*")]

    def read(self, name: str) -> bytes:
        """Returns the content of a file.

        Args:
            name: Its name.

        Raises:
            ValueError: If it is no regular file.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        # A pipe of that name would not return.
        with open(os.open(self._path / name, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            return file.read()

    def write(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Writes a file, or leaves what is there.

        Args:
            name: The file's name.
            pieces: Its content. Pieces should begin with pages of memory, and their
                sizes be multiples of `BLOCK`, except that of the last one.

        Raises:
            OSError: If it could not be written.
        """
        path = self._path / name
        self.make_folder()
        unfinished = path.with_name(f"{path.stem}-{secrets.token_hex(8)}{_UNFINISHED}")
        try:
            with _new_file(unfinished) as file:
                _write_past_cache(file.fileno(), pieces)
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError:
            # So that a full disk is not left with less room than before.
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Removes a file, if that is possible.

        Args:
            name: Its name.
        """
        with contextlib.suppress(OSError):
            (self._path / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Removes what killed processes have left."""
        for kind in ("epoch", "trial", "time"):
            for path in self._path.glob(f"{kind}-*{_UNFINISHED}"):
                self.remove(path.name)

    def record(self, name: str, text: str) -> None:
        """Replaces the text of a small file, without waiting for the disk.

        Args:
            name: The file's name.
            text: Its content, of the same length every time.
        """
        # Training is worth more than this file.
        with contextlib.suppress(OSError):
            if self._recording is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                path = self._path / name
                self._recording = os.open(path, flags | os.O_CLOEXEC, 0o666)
            os.pwrite(self._recording, text.encode(), 0)

    def close(self) -> None:
        """Closes the file of `record`."""
        if self._recording is not None:
            os.close(self._recording)
            self._recording = None


def _new_file(path: pathlib.Path) -> BinaryIO:
    """Opens a file that must not exist: neither as a link to another one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _write_past_cache(file: int, pieces: Sequence[memoryview]) -> None:
    """Writes without copying to the page cache, where the system can.

    The copy would take several times the processor time of all else in a backup.
    """
    direct = _set_direct(file, True)
    for piece in pieces:
        while piece:
            part = piece[:_BYTES_OF_A_WRITE]
            if direct and len(part) % BLOCK:
                part = part[: len(part) // BLOCK * BLOCK]
                if not part:
                    # The end of the file.
                    direct = _set_direct(file, False)
                    continue
            try:
                piece = piece[os.write(file, part) :]
            except OSError as error:
                if not direct or error.errno not in _NO_DIRECT_WRITES:
                    raise
                direct = _set_direct(file, False)


def _set_direct(file: int, direct: bool) -> bool:
    """Returns whether a file is now written past the page cache."""
    flag = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~flag
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | flag if direct else flags)
    except OSError as error:
        if error.errno not in _NO_DIRECT_WRITES:
            raise
        return False
    return direct and bool(flag)
