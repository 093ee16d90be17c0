"""Writes backups while training goes on."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.backup_folder import BackupFolder
from keras_fastnet.cluster import events


class BackupWriter:
    """Writes the backups of a training, one at a time, in a thread.

    Unless the process is killed, Python waits for the thread, so that an exception in
    training does not lose the backup that is being written.

    Args:
        folder: The folder, open.
        keep: Number of the newest backups to keep.
        note: Called in the training thread with lines about backups that fail.
    """

    def __init__(self, folder: BackupFolder, keep: int, note: Callable[[str], None]):
        self._folder = folder
        self._keep = keep
        self._note = note
        self._failing = False
        self._writing: _Writing | None = None

    def start(
        self, arrays: dict[str, np.ndarray], about: dict[str, Any], updates: int
    ) -> None:
        """Begins to write a backup, when the one before is written.

        Args:
            arrays: Arrays by name, which nothing changes from now on.
            about: What the backup states about itself.
            updates: Number of updates made, to tell the launcher.
        """
        self.wait()
        self._writing = _Writing(self._folder, self._keep, arrays, about, updates)
        self._writing.start()

    def wait(self) -> None:
        """Waits until the last backup is written, or has failed.

        That the disk is full, or fails, is a line and no error: earlier backups are
        there still, and training is worth more.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        writing.join()
        error = writing.error
        if isinstance(error, OSError):
            if writing.ends_epoch or not self._failing:
                self._note(
                    f"WARNING: no backup could be written ({error}). Training "
                    "continues; after an interruption it would resume from the newest "
                    f"backup in {self._folder.path}"
                )
            self._failing = True
        elif error is not None:
            raise error
        else:
            if self._failing:
                self._note(f"backups are written to {self._folder.path} again")
            self._failing = False


def wait_for_writers() -> None:
    """Waits for backups that a `fit` has left behind, which an exception has ended."""
    for thread in threading.enumerate():
        if isinstance(thread, _Writing):
            thread.join()


def described(folder: BackupFolder, about: dict[str, Any], updates: int) -> Any:
    """Returns what the launcher is told about a backup.

    Args:
        folder: Its folder.
        about: What the backup states about itself.
        updates: Number of updates made.
    """
    name = backup_file.file_name(about["epoch"], about["batch"])
    return {
        "file": f"{folder.path}/{name}",
        "epoch": about["epoch"],
        "batch": about["batch"],
        "updates": updates,
    }


class _Writing(threading.Thread):
    """Writes one backup."""

    def __init__(
        self,
        folder: BackupFolder,
        keep: int,
        arrays: dict[str, np.ndarray],
        about: dict[str, Any],
        updates: int,
    ):
        # Not a daemon, for which Python would not wait.
        super().__init__(name="fastnet-backup", daemon=False)
        self._folder = folder
        self._keep = keep
        self._backup: Any = arrays, about
        self._described = described(folder, about, updates)
        self.ends_epoch = about["batch"] == 0
        self.error: BaseException | None = None

    def run(self) -> None:
        arrays, about = self._backup
        name = backup_file.file_name(about["epoch"], about["batch"])
        try:
            self._folder.write(
                name,
                lambda file: backup_file.write(file, arrays, about),
                self._keep,
            )
            # At once: the launcher hears of it even if the process is killed then.
            events.tell("backup", backup=self._described)
        # Raised in the training thread.
        except BaseException as error:
            self.error = error
        finally:
            # The memory of a whole state.
            self._backup = arrays = None
