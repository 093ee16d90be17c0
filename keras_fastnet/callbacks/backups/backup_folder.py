"""The folder of a training's backups, and the thread that writes them."""

import contextlib
import json
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.backup_files import LocalFiles, RemoteFiles

OWNER = "owner.json"
"""The file that states which process uses the folder."""
# One thread for all trainings of the process. Unless the process is killed, Python
# waits for it at the end, so an exception in training does not lose a backup.
_THREAD = ThreadPoolExecutor(1, "fastnet-backup")


def wait_for_backups() -> None:
    """Waits for backups of a `fit` that an exception has ended."""
    _THREAD.submit(lambda: None).result()


class BackupFolder:
    """Writes backups in a thread, and finds the newest intact one.

    The process that takes a folder last owns it. An earlier one, for example the same
    training on a machine that was suspended meanwhile, then writes and removes nothing
    more: see `_check_owner`. A restart therefore waits for no lock of a dead process.

    Args:
        location: The folder: a path, or a URL of an object store.
        keep: Number of the newest backups to keep.
        note: Called in the training thread with lines about backups that fail.
    """

    def __init__(
        self, location: pathlib.Path | str, keep: int, note: Callable[[str], None]
    ):
        self.location = location
        self._files = (
            LocalFiles(location)
            if isinstance(location, pathlib.Path)
            else RemoteFiles(location)
        )
        self._keep = keep
        self._note = note
        self._owner: dict[str, Any] = {}
        self._writing: Future[None] | None = None
        self._ends_epoch = False
        self._failing = False

    def newest(self) -> bytes:
        """Returns the content of the newest intact backup; empty if there is none.

        Raises:
            ValueError: If the folder cannot be made, or there are backups and all of
                them are damaged.
        """
        with self._raising_value_error():
            self._files.open()
            names = self._backups()
        damaged = []
        for name in names:
            try:
                content = self._files.read(name)
                backup_file.read(content)
            except (OSError, ValueError) as error:
                damaged.append(f"{name}: {error}")
                continue
            for text in damaged:
                self._note(f"skipping {self.location}/{text}")
            return content
        if damaged:
            raise ValueError(
                "At least one backup must be intact. Received: only damaged ones in "
                f"{self.location} ({'; '.join(damaged)}). Remove them to start over."
            )
        return b""

    def take(self) -> bytes:
        """Takes the folder for this training, after `newest`; returns nothing.

        Raises:
            ValueError: If files cannot be written in it.
        """
        self._owner = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "token": secrets.token_hex(8),
        }
        with self._raising_value_error():
            self._files.remove_unfinished()
            self._write_owner()
        return b""

    def start_writing(
        self,
        arrays: Sequence[tuple[str, str, np.ndarray]],
        about: dict[str, Any],
    ) -> None:
        """Writes a backup in the thread, when the one before is written.

        Args:
            arrays: As for `backup_file.write`. Nothing may change them.
            about: What the backup states about itself.
        """
        self.wait()
        self._ends_epoch = about["batch"] == 0
        self._writing = _THREAD.submit(self._write, list(arrays), about)

    def wait(self) -> bool:
        """Waits until the last backup is written, or has failed.

        A failure is a warning and no error: earlier backups exist, and training goes
        on. The warning is repeated at the end of every epoch.

        Returns:
            Whether a backup was written.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return False
        try:
            writing.result()
        except OSError as error:
            if self._ends_epoch or not self._failing:
                self._note(
                    f"WARNING: no backup could be written ({error}). Training "
                    "continues; after an interruption it would resume from the newest "
                    f"backup in {self.location}"
                )
            self._failing = True
            return False
        if self._failing:
            self._note(f"backups are written to {self.location} again")
        self._failing = False
        return True

    def close(self, *, delete: bool = False) -> None:
        """Waits, and leaves the folder; removes it if it is empty then.

        Args:
            delete: Whether to remove the backups. Defaults to `False`.
        """
        self.wait()
        try:
            self._check_owner()
            for name in [*(self._backups() if delete else ()), OWNER]:
                self._files.remove(name)
            self._files.close()
        except OSError as error:
            self._note(f"WARNING: files may be left in {self.location} ({error})")

    def _write(
        self,
        arrays: list[tuple[str, str, np.ndarray]],
        about: dict[str, Any],
    ) -> None:
        self._check_owner()
        name = backup_file.file_name(about["epoch"], about["batch"])
        self._files.write(name, lambda file: backup_file.write(file, arrays, about))
        for old in self._backups()[self._keep :]:
            self._files.remove(old)

    def _check_owner(self) -> None:
        """Raises `OSError` if another process has taken the folder since."""
        try:
            content = self._files.read(OWNER)
        except FileNotFoundError:
            # The folder was removed.
            self._write_owner()
            return
        try:
            owner = json.loads(content)
            if owner["token"] == self._owner["token"]:
                return
            text = "process {process} on host {host}, since {since}".format(**owner)
        except (ValueError, TypeError, KeyError):
            text = f"unknown: {OWNER} is damaged"
        raise OSError(f"another training uses the folder: {text}")

    @contextlib.contextmanager
    def _raising_value_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                "`backup_dir` must be a folder in which files can be written. "
                f"Received: {self.location}, for which the system reports: {error}. "
                "Change the folder's permissions, free space, or pass another "
                "`backup_dir`."
            ) from None

    def _write_owner(self) -> None:
        content = json.dumps(self._owner).encode()
        self._files.write(OWNER, lambda file: file.write(content))

    def _backups(self) -> list[str]:
        return backup_file.newest_first(self._files.names())
