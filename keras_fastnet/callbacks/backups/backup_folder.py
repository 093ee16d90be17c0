"""The folder of a training's backups."""

import contextlib
import errno
import os
import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.folder_lock import FolderInUseError
from keras_fastnet.callbacks.backups.local_files import LocalFiles
from keras_fastnet.callbacks.backups.remote_files import RemoteFiles

_FULL = (errno.ENOSPC, errno.EDQUOT)
RECORD_NAME = "training.updates"


class Lock(Protocol):
    """Lets one training at a time use a folder."""

    def take(self, rank: int, workers: int) -> None:
        """Takes the lock, or raises `FolderInUseError`."""

    def is_held(self) -> bool:
        """Returns whether this process holds the lock still."""
        ...

    def release(self) -> None:
        """Releases the lock, if this process holds it."""


class Files(Protocol):
    """The files of a folder. Methods raise `OSError` if they fail."""

    @property
    def lock(self) -> Lock | None:
        """The lock of the folder; `None` if no other training may be given it."""

    def make_folder(self) -> None:
        """Makes the folder, if it is missing."""

    def remove_folder(self) -> None:
        """Removes the folder, if it is empty."""

    def try_out(self, size: int) -> None:
        """Raises `OSError` if a file of a size cannot be written."""

    def names(self) -> list[str]:
        """Returns the names of the files."""
        ...

    def read(self, name: str) -> bytes:
        """Returns the content of a file; `ValueError` if it is no regular file."""
        ...

    def write(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Writes a file atomically, even if the power fails."""

    def remove(self, name: str) -> None:
        """Removes a file, if that is possible."""

    def remove_unfinished(self) -> None:
        """Removes what killed processes have left."""

    def record(self, name: str, text: str) -> None:
        """Replaces the text of a small file within microseconds, if it can."""

    def close(self) -> None:
        """Ends the use of the folder."""


class Record(NamedTuple):
    """How far a training was.

    Attributes:
        updates: Number of updates made.
        time: When the last of them was made, in seconds since 1970.
    """

    updates: int
    time: float


class BackupFolder:
    """Reads and writes backups in a folder that one training at a time may use.

    Args:
        path: The folder: a path, or a URL of an object store.
        shared: Whether other trainings may be given the same folder by mistake, so that
            a lock is needed. Defaults to `True`.
    """

    def __init__(self, path: pathlib.Path | str, *, shared: bool = True):
        self.path = path
        self._files: Files = (
            LocalFiles(path, shared=shared)
            if isinstance(path, pathlib.Path)
            else RemoteFiles(path)
        )
        self._owner = 0, 1
        # The name of the backup that training would resume from.
        self._newest = ""
        self._recording = False

    def open(self, size: int, rank: int, workers: int) -> None:
        """Takes the folder for this training, and tries whether backups fit into it.

        Args:
            size: Bytes of a backup.
            rank: This worker's rank, for messages to other trainings.
            workers: Number of workers, for messages to other trainings.

        Raises:
            ValueError: If the folder cannot be used.
        """
        self._owner = rank, workers
        self._newest = ""
        self._recording = False
        try:
            self._take()
            # Of a process that was killed: this training is the only one.
            self._files.remove_unfinished()
            self._try_out(size)
        except FolderInUseError as error:
            raise ValueError(
                f"`backup_dir` must be used by one training at a time. Received: "
                f"{error}. Wait until it ends, end it, or pass another `backup_dir`."
            ) from None
        except OSError as error:
            with contextlib.suppress(OSError):
                self.close()
            raise ValueError(
                f"`backup_dir` must be a folder into which backups of {size:,} bytes "
                f"can be written. Received: {self.path}, for which the system reports: "
                f"{error}. Change the folder's permissions, free space, or pass "
                "another `backup_dir`."
            ) from None

    def newest(self) -> tuple[bytes, list[str]]:
        """Returns the newest intact backup, and why newer ones were skipped.

        Returns:
            Its content, empty if there are no backups; a text for each damaged one.

        Raises:
            ValueError: If there are backups, and all of them are damaged.
        """
        skipped = []
        for name in self._backups():
            try:
                content = self._files.read(name)
                backup_file.unpack(content)
            except (OSError, ValueError) as error:
                skipped.append(f"{name}: {error}")
            else:
                self._newest = name
                return content, [f"skipping {self.path}/{text}" for text in skipped]
        if skipped:
            raise ValueError(
                "At least one backup must be intact. Received: only damaged ones in "
                f"{self.path} ({'; '.join(skipped)}). Remove them to start over."
            )
        return b"", []

    def has_backups(self) -> bool:
        """Returns whether the folder holds a backup."""
        return bool(self._backups())

    def write(self, name: str, pieces: Sequence[memoryview], keep: int) -> None:
        """Writes a backup atomically, even if the power fails, and removes old ones.

        If the disk is full, all backups but the newest are removed before a second
        attempt.

        Args:
            name: The file's name.
            pieces: The content, as of `Snapshot.pieces`.
            keep: Number of the newest backups to keep.

        Raises:
            OSError: If it could not be written. Earlier backups are unchanged, except
                as stated above.
        """
        lock = self._files.lock
        if lock is not None and not lock.is_held():
            # The folder was removed, or another host took over from a process that was
            # suspended.
            try:
                self._take()
            except FolderInUseError as error:
                raise OSError(errno.EBUSY, str(error)) from None
        try:
            self._files.write(name, pieces)
        except OSError as error:
            if error.errno not in _FULL or len(self._backups()) < 2:
                raise
            self._remove_backups(keep=1)
            self._files.write(name, pieces)
        self._newest = name
        self._remove_backups(keep=keep)

    def record(self, updates: int) -> None:
        """Records how far training is, next to the backups.

        Another training may read it even if this process is killed. It is not written
        to the disk at once, so the last seconds may be lost with the machine.

        Args:
            updates: Number of updates made.
        """
        if self._files.lock is not None and self._newest:
            self._recording = True
            text = f"{updates:015d} {time.time():.3f} {self._newest}\n"
            self._files.record(RECORD_NAME, text)

    def recorded(self) -> Record | None:
        """Returns how far the training was that these backups are of.

        Returns:
            `None` if that is not known: without a record, or if it is of other backups.
        """
        try:
            content = self._files.read(RECORD_NAME)
            updates, when, name = content.splitlines()[0].decode().split()
            record = Record(int(updates), float(when))
        except (OSError, ValueError, IndexError):
            return None
        return record if name in self._backups() else None

    def remove_record(self) -> None:
        """Removes the record, of a training that has nothing to repeat."""
        if self._recording:
            self._files.remove(RECORD_NAME)

    def close(self, *, delete: bool = False) -> None:
        """Releases the folder for other trainings; removes it if it is empty then.

        Args:
            delete: Whether to remove the backups. Defaults to `False`.
        """
        lock = self._files.lock
        own = lock is None or lock.is_held()
        if delete and own:
            self._remove_backups(keep=0)
            self._files.remove_unfinished()
        self._files.close()
        if lock is not None:
            lock.release()
        if own:
            self._files.remove_folder()

    def _take(self) -> None:
        self._files.make_folder()
        if self._files.lock is not None:
            self._files.lock.take(*self._owner)

    def _try_out(self, size: int) -> None:
        try:
            self._files.try_out(size)
        except OSError as error:
            # `write` makes room by removing old backups.
            if error.errno not in _FULL or len(self._backups()) < 2:
                raise

    def _backups(self) -> list[str]:
        return backup_file.newest_first(self._files.names())

    def _remove_backups(self, *, keep: int) -> None:
        for name in self._backups()[keep:]:
            self._files.remove(name)


def folder_at(path: str | pathlib.Path) -> pathlib.Path | str:
    """Returns a folder's path, or its URL if it is one.

    Args:
        path: What the user has given.
    """
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else pathlib.Path(text)
