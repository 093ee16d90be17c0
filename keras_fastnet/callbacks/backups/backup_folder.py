"""The folder of a training's backups."""

import contextlib
import errno
import os
import pathlib
import secrets
import stat
import time
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.folder_lock import FolderInUseError, FolderLock

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of `posix_fallocate` where the file system or an emulation lacks it.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Ends the name of a file that is being written.
_UNFINISHED = ".unfinished"
RECORD_NAME = "training.updates"
Write = Callable[[BinaryIO], object]


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
        path: The folder.
        shared: Whether other trainings may be given the same folder by mistake, so that
            a lock is needed. Defaults to `True`.
    """

    def __init__(self, path: pathlib.Path, *, shared: bool = True):
        self.path = path
        self._lock = FolderLock(path) if shared else None
        self._owner = 0, 1
        # The name of the backup that training would resume from.
        self._newest = ""
        self._record: int | None = None

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
        try:
            self._take()
            # Of a process that was killed: this training is the only one.
            self._remove_unfinished()
            self._try_out(size)
        except FolderInUseError as error:
            raise ValueError(
                f"`backup_dir` must be used by one training at a time. Received: "
                f"{error}. Wait until it ends, end it, or pass another `backup_dir`."
            ) from None
        except OSError as error:
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
        for path in backup_file.backups(self.path):
            try:
                content = _read(path)
                backup_file.unpack(content)
            except (OSError, ValueError) as error:
                skipped.append(f"{path.name}: {error}")
            else:
                self._newest = path.name
                return content, [f"skipping {self.path}/{text}" for text in skipped]
        if skipped:
            raise ValueError(
                "At least one backup must be intact. Received: only damaged ones in "
                f"{self.path} ({'; '.join(skipped)}). Remove them to start over."
            )
        return b"", []

    def has_backups(self) -> bool:
        """Returns whether the folder holds a backup."""
        return bool(backup_file.backups(self.path))

    def write(self, name: str, write: Write, keep: int) -> None:
        """Writes a backup atomically, even if the power fails, and removes old ones.

        If the disk is full, all backups but the newest are removed before a second
        attempt.

        Args:
            name: The file's name.
            write: Writes the content into a file.
            keep: Number of the newest backups to keep.

        Raises:
            OSError: If it could not be written. Earlier backups are unchanged, except
                as stated above.
        """
        if self._lock is not None and not self._lock.is_held():
            # The folder was removed, or another host took over from a process that was
            # suspended.
            try:
                self._take()
            except FolderInUseError as error:
                raise OSError(errno.EBUSY, str(error)) from None
        try:
            write_atomically(self.path / name, write)
        except OSError as error:
            if error.errno not in _FULL or len(backup_file.backups(self.path)) < 2:
                raise
            self._remove_backups(keep=1)
            write_atomically(self.path / name, write)
        self._newest = name
        self._remove_backups(keep=keep)

    def record(self, updates: int) -> None:
        """Records how far training is, next to the backups.

        Another training may read it even if this process is killed. It is not written
        to the disk at once, so the last seconds may be lost with the machine.

        Args:
            updates: Number of updates made.
        """
        if self._lock is None or not self._newest:
            return
        text = f"{updates:015d} {time.time():.3f} {self._newest}\n"
        # Training is worth more than this file.
        with contextlib.suppress(OSError):
            if self._record is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                path = self.path / RECORD_NAME
                self._record = os.open(path, flags | os.O_CLOEXEC, 0o666)
            os.pwrite(self._record, text.encode(), 0)

    def recorded(self) -> Record | None:
        """Returns how far the training was that these backups are of.

        Returns:
            `None` if that is not known: without a record, or if it is of other backups.
        """
        try:
            content = _read(self.path / RECORD_NAME)
            updates, when, name = content.splitlines()[0].decode().split()
            record = Record(int(updates), float(when))
        except (OSError, ValueError, IndexError):
            return None
        return record if (self.path / name).exists() else None

    def remove_record(self) -> None:
        """Removes the record, of a training that has nothing to repeat."""
        if self._record is not None:
            with contextlib.suppress(OSError):
                (self.path / RECORD_NAME).unlink(missing_ok=True)

    def close(self, *, delete: bool = False) -> None:
        """Releases the folder for other trainings; removes it if it is empty then.

        Args:
            delete: Whether to remove the backups. Defaults to `False`.
        """
        if self._record is not None:
            os.close(self._record)
            self._record = None
        own = self._lock is None or self._lock.is_held()
        if delete and own:
            self._remove_backups(keep=0)
            self._remove_unfinished()
        if self._lock is not None:
            self._lock.release()
        if own:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def _take(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is not None:
            self._lock.take(*self._owner)

    def _try_out(self, size: int) -> None:
        """Raises `OSError` if a file of a backup's size cannot be written."""
        path = self.path / f"trial-{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            with _new_file(path) as file:
                file.write(b"\0")
                file.flush()
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    # `write` makes room by removing old backups.
                    room = (
                        error.errno in _FULL and len(backup_file.backups(self.path)) > 1
                    )
                    if not room and error.errno not in _NO_ALLOCATION:
                        raise
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _remove_backups(self, *, keep: int) -> None:
        for path in backup_file.backups(self.path)[keep:]:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _remove_unfinished(self) -> None:
        for kind in ("epoch", "trial", "time"):
            for path in self.path.glob(f"{kind}-*{_UNFINISHED}"):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, write: Write) -> None:
    """Writes a file, or leaves what is there.

    Args:
        path: The file. Its folder is made if it is missing.
        write: Writes the content into a file.

    Raises:
        OSError: If it could not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.stem}-{secrets.token_hex(8)}{_UNFINISHED}")
    try:
        with _new_file(unfinished) as file:
            write(file)
            file.flush()
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


def _new_file(path: pathlib.Path) -> BinaryIO:
    """Opens a file that must not exist: neither as a link to another one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _read(path: pathlib.Path) -> bytes:
    # A pipe of that name would not return.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return file.read()
