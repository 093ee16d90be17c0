"""A lock on a folder, for one training at a time, on one host or several."""

import atexit
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_fastnet.text import count

HEARTBEAT_SECONDS = 10.0
"""Interval at which the owner of a lock renews its file's time."""
STALE_SECONDS = 60.0
"""Age of a lock of another host, without a heartbeat, from which it can be taken."""
ENDING_SECONDS = 10.0
"""Time that a process of this host has to end, if it was killed."""
FILE_NAME = "training.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderLock:
    """Lets one training at a time use a folder.

    The lock is a file in the folder. It states its owner, and the owner's process holds
    a kernel lock on it (POSIX, so that a process forked from the owner does not hold
    it). On one host the kernel lock decides. It ends with its process; this process
    waits for that for up to `ENDING_SECONDS`, since a killed process may be ending
    still when its training is restarted. Locks of other hosts are not trusted to reach
    this one over every network file system, nor to end with their process. There the
    file's time decides, which the owner renews every `HEARTBEAT_SECONDS`: this process
    waits until it is renewed, or `STALE_SECONDS` old by the file server's clock.

    A process that takes the lock again takes it from itself, since a `fit` that an
    exception has ended cannot release it.

    Args:
        folder: The folder, which must exist when the lock is taken.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._path = folder / FILE_NAME
        self._file: int | None = None
        self._process = 0
        # Made when the lock is taken: programs copy callbacks before that.
        self._ended: threading.Event | None = None

    def take(self, rank: int, workers: int) -> None:
        """Takes the lock; may wait for `ENDING_SECONDS`, or up to `STALE_SECONDS`.

        Args:
            rank: This worker's rank, stated in the file.
            workers: Number of workers of the training, stated in the file.

        Raises:
            FolderInUseError: If another training uses the folder.
            OSError: If the file cannot be read or written.
        """
        folder = self._folder.resolve()
        if (earlier := _held.get(folder)) is not None:
            earlier.release()
        while self._file is None:
            file = os.open(self._path, _FLAGS, 0o666)
            try:
                if self._is_free(file):
                    self._file = file
            finally:
                if self._file is None:
                    os.close(file)
        self._process = os.getpid()
        self._content = content_of(this_process(rank, workers))
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, self._content, 0)
        os.fsync(self._file)
        _held[folder] = self
        self._ended = threading.Event()
        threading.Thread(
            target=_renew, args=(self._file, self._ended), daemon=True
        ).start()

    def is_held(self) -> bool:
        """Returns whether this process holds the lock still.

        It does not if another host took it because this process was suspended.
        """
        if self._file is None or self._process != os.getpid():
            return False
        # Not by opening the file: closing it would release the kernel lock.
        return (
            _is_at(self._file, self._path)
            and os.pread(self._file, 4096, 0) == self._content
        )

    def release(self) -> None:
        """Removes the file, if this process holds the lock."""
        if self._file is None or self._process != os.getpid():
            return
        if self._ended is not None:
            self._ended.set()
        with contextlib.suppress(OSError):
            if self.is_held():
                os.unlink(self._path)
        os.close(self._file)
        self._file = None
        for folder in [f for f, lock in _held.items() if lock is self]:
            del _held[folder]

    def _is_free(self, file: int) -> bool:
        """Returns whether the open file can be taken; `False` to try another one."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self._path))
        locked = _lock(file)
        if not _is_at(file, self._path):
            return False
        owner = owner_in(os.pread(file, 4096, 0))
        if locked and (owner is None or owner.get("machine") == machine()):
            return True
        if locked is None and owner is None:
            return True
        if locked is False and (owner or {}).get("machine") == machine():
            wait_for_end(
                lambda: not _is_at(file, self._path) or bool(_lock(file)),
                self._folder,
                owner,
            )
            return False
        if not self._is_stale(file, owner):
            return False
        if locked:
            return True
        os.unlink(self._path)
        return False

    def _is_stale(self, file: int, owner: dict[str, Any] | None) -> bool:
        """Waits for a heartbeat; returns whether none came within the limit.

        Raises:
            FolderInUseError: If there was a heartbeat.
        """
        renewed = os.fstat(file).st_mtime
        told = False
        while (age := self._file_server_time() - renewed) < STALE_SECONDS:
            if not told:
                print(
                    f"fastnet: waiting up to {STALE_SECONDS - age:.0f} s for a sign of "
                    f"{named(owner)}, which has not released {self._folder}",
                    flush=True,
                )
                told = True
            time.sleep(min(1.0, max(0.0, STALE_SECONDS - age)))
            if not _is_at(file, self._path):
                return False
            # By the path, since network file systems keep old times of open files.
            if os.stat(self._path).st_mtime != renewed:
                raise FolderInUseError(self._folder, owner)
        return True

    def _file_server_time(self) -> float:
        """Returns the time by the clock that sets the times of files."""
        path = self._folder / f"time-{secrets.token_hex(8)}.unfinished"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return path.stat().st_mtime
        finally:
            path.unlink(missing_ok=True)


class FolderInUseError(Exception):
    """Another training uses the folder.

    Args:
        folder: The folder.
        owner: The content of its lock; `None` if it is not readable.
    """

    def __init__(self, folder: pathlib.Path | str, owner: dict[str, Any] | None):
        super().__init__(f"{folder} is used by {named(owner)}")


def wait_for_end(
    has_ended: Callable[[], bool],
    folder: pathlib.Path | str,
    owner: dict[str, Any] | None,
) -> None:
    """Waits until another process of this host has ended, and says so.

    Args:
        has_ended: Returns whether it has.
        folder: The folder that it uses.
        owner: The content of its lock; `None` if it is not readable.

    Raises:
        FolderInUseError: If it has not ended after `ENDING_SECONDS`.
    """
    print(
        f"fastnet: waiting up to {ENDING_SECONDS:.0f} s for the end of {named(owner)}, "
        f"which uses {folder}",
        flush=True,
    )
    end = time.monotonic() + ENDING_SECONDS
    while not has_ended():
        if time.monotonic() > end:
            raise FolderInUseError(folder, owner)
        time.sleep(0.1)


def this_process(rank: int, workers: int) -> dict[str, Any]:
    """Returns what a lock of this process states about its owner.

    Args:
        rank: This worker's rank.
        workers: Number of workers of the training.
    """
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "process": os.getpid(),
        "rank": rank,
        "workers": workers,
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "token": secrets.token_hex(8),
    }


def content_of(owner: dict[str, Any]) -> bytes:
    """Returns the content of a lock.

    Args:
        owner: Its owner.
    """
    return (json.dumps(owner, indent=1) + "\n").encode()


def owner_in(content: bytes | None) -> dict[str, Any] | None:
    """Returns the owner that a lock states; `None` if it is not readable.

    Args:
        content: The lock's content; `None` if there is no lock.
    """
    try:
        owner = json.loads(content or b"")
    except ValueError:
        return None
    return owner if isinstance(owner, dict) else None


def named(owner: dict[str, Any] | None) -> str:
    """Returns a text about the owner of a lock.

    Args:
        owner: The content of the lock; `None` if it is not readable.
    """
    if owner is None:
        return "a process that is not named in its lock"
    text = f"process {owner.get('process')} on host {owner.get('host')!r}"
    text += f" (rank {owner.get('rank')} of {count(owner.get('workers', 1), 'worker')})"
    return f"{text} since {owner.get('since')}"


def _lock(file: int) -> bool | None:
    """Tries to get the kernel lock; returns `None` if the file system has none."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _is_at(file: int, path: pathlib.Path) -> bool:
    """Returns whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def machine() -> str:
    """Returns a name of the running system; containers on it share the name."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _renew(file: int, ended: threading.Event) -> None:
    """Renews the time of a lock's file until the lock is released."""
    while not ended.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(file)


# The locks of this process, by folder. A process must open a lock's file only once:
# closing any descriptor of it would release the kernel lock.
_held: dict[pathlib.Path, FolderLock] = {}


@atexit.register
def _release_all() -> None:
    for lock in list(_held.values()):
        lock.release()
