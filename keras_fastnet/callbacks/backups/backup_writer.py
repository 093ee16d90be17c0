"""Writes backups while training goes on."""

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.backup_folder import BackupFolder

# A checksum is computed in such pieces, and so long only in idle time.
_BYTES_OF_A_SUM = 4 << 20
_IDLE_SECONDS = 10.0


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
        self._snapshot: backup_file.Snapshot | None = None

    def start(
        self, values: Mapping[str, np.ndarray], about: dict[str, Any], updates: int
    ) -> None:
        """Begins to write a backup, when the one before is written.

        Args:
            values: The arrays, by name, which nothing must change.
            about: What the backup states about itself.
            updates: Number of updates made, to tell the launcher.
        """
        self.wait()
        kinds = {name: (value.dtype, value.shape) for name, value in values.items()}
        if self._snapshot is None or self._snapshot.kinds != kinds:
            self._snapshot = backup_file.Snapshot(kinds)
        self._writing = _Writing(
            self._folder, self._keep, self._snapshot, values, about, updates
        )
        self._writing.start()

    def close(self) -> None:
        """Waits, and frees the memory of the arrays."""
        self.wait()
        self._snapshot = None

    def wait(self) -> None:
        """Waits until the last backup is written, or has failed.

        That the disk is full, or fails, is a line and no error: earlier backups are
        there still, and training is worth more.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        writing.finish()
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
            thread.finish()


class _Writing(threading.Thread):
    """Writes one backup.

    Attributes:
        ends_epoch: Whether it is the backup of the end of an epoch.
        error: What was raised.
    """

    def __init__(
        self,
        folder: BackupFolder,
        keep: int,
        snapshot: Any,
        values: Mapping[str, np.ndarray],
        about: dict[str, Any],
        updates: int,
    ):
        # Not a daemon, for which Python would not wait.
        super().__init__(name="fastnet-backup", daemon=False)
        self._folder = folder
        self._keep = keep
        self._snapshot: Any = snapshot
        self._values = dict(values)
        self._about = about
        self._hurried = threading.Event()
        self.ends_epoch = about["batch"] == 0
        self.error: BaseException | None = None

    def run(self) -> None:
        name = backup_file.file_name(self._about["epoch"], self._about["batch"])
        try:
            self._copy()
            pieces = self._snapshot.pieces(self._about, self._checksums())
            self._folder.write(name, pieces, self._keep)
        # Raised in the training thread.
        except BaseException as error:
            self.error = error
        finally:
            # The memory of a whole state.
            self._snapshot = None
            self._values.clear()

    def finish(self) -> None:
        """Waits, and lets the backup take the processor time that it needs."""
        self._hurried.set()
        self.join()

    def _copy(self) -> None:
        """Copies the values, and lets go of each.

        An update that comes before that must not write into a value's memory: it would
        take new memory, which costs more than the copy.
        """
        while self._values:
            name, value = self._values.popitem()
            np.copyto(self._snapshot.arrays[name], value)

    def _checksums(self) -> dict[str, int]:
        """Returns the CRC-32 of each array.

        It takes most of the processor time of a backup, so a thread that uses the
        processor only when nothing else does computes it. When training waits for the
        backup, the program ends, or it takes long, this thread computes the rest.
        """
        sums: dict[str, int] = {}

        def compute(needed: Callable[[], bool]) -> None:
            for name, content in self._snapshot.contents.items():
                if name in sums:
                    continue
                total = 0
                for start in range(0, len(content), _BYTES_OF_A_SUM):
                    if not needed():
                        return
                    total = zlib.crc32(content[start : start + _BYTES_OF_A_SUM], total)
                sums[name] = total

        def compute_in_idle_time() -> None:
            # Not on every system; the thread is then one like others.
            with contextlib.suppress(AttributeError, OSError):
                # Linux means the calling thread by 0.
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            main, end = threading.main_thread(), time.monotonic() + _IDLE_SECONDS
            compute(
                lambda: (
                    main.is_alive()
                    and not self._hurried.is_set()
                    and time.monotonic() < end
                )
            )

        thread = threading.Thread(target=compute_in_idle_time, daemon=True)
        thread.start()
        thread.join()
        compute(lambda: True)
        return sums
