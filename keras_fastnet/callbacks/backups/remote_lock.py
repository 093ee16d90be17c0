"""A lock in an object store, for one training at a time."""

import atexit
import contextlib
import os
import pathlib
import re
import socket
import threading
import time
from typing import Any, Protocol

from keras_fastnet.callbacks.backups import folder_lock
from keras_fastnet.callbacks.backups.folder_lock import FolderInUseError

_NAME = re.compile(r"training-(\d{9})\.lock")


class Objects(Protocol):
    """Those of a folder in an object store. Methods raise `OSError` if they fail."""

    def names(self) -> list[str]:
        """Returns the names of the objects."""
        ...

    def read(self, name: str) -> bytes:
        """Returns the content of an object."""
        ...

    def put(self, name: str, content: bytes, *, new: bool = False) -> None:
        """Writes an object; `FileExistsError` if it must be new, and is not."""

    def remove(self, name: str) -> None:
        """Removes an object, if that is possible."""


class RemoteLock:
    """Lets one training at a time use a folder of an object store.

    An object store has neither links nor kernel locks, but creates an object only if
    there is none, when asked to. The locks of a folder are therefore numbered, and the
    highest number owns it: a training takes the folder by creating the number after
    that of an owner that is gone. Its object is rewritten every
    `folder_lock.HEARTBEAT_SECONDS`. An owner is gone when its process on this machine
    has ended, or when its object does not change for `folder_lock.STALE_SECONDS`.

    A process that takes the lock again takes it from itself.

    Args:
        objects: The folder's objects.
        url: The folder.
    """

    def __init__(self, objects: Objects, url: str):
        self._objects = objects
        self._url = url
        self._number = 0
        self._owner: dict[str, Any] = {}
        # Made when the lock is taken: programs copy callbacks before that.
        self._ended: threading.Event | None = None
        self._heart: threading.Thread | None = None

    def take(self, rank: int, workers: int) -> None:
        """Takes the lock; may wait for up to `folder_lock.STALE_SECONDS`.

        Args:
            rank: This worker's rank, stated in the lock.
            workers: Number of workers of the training, stated in the lock.

        Raises:
            FolderInUseError: If another training uses the folder.
        """
        if (earlier := _held.get(self._url)) is not None:
            earlier.release()
        self._owner = {
            **folder_lock.this_process(rank, workers),
            "machine": _machine(),
            "started": _start_of(os.getpid()),
            "renewed": 0,
        }
        while not self._create():
            pass
        _held[self._url] = self
        self._ended = threading.Event()
        self._heart = threading.Thread(
            target=self._renew, args=(self._ended,), daemon=True
        )
        self._heart.start()

    def is_held(self) -> bool:
        """Returns whether this process holds the lock still."""
        try:
            if not self._number or max(self._numbers(), default=0) != self._number:
                return False
            owner = folder_lock.owner_in(self._read(self._number)) or {}
        except OSError:
            return False
        return owner.get("token") == self._owner["token"]

    def release(self) -> None:
        """Removes the lock, if this process holds it."""
        # A process that was forked from the owner does not hold it.
        if not self._number or self._owner["process"] != os.getpid():
            return
        if self._ended is not None and self._heart is not None:
            self._ended.set()
            # So that it does not write the object once more.
            self._heart.join(folder_lock.HEARTBEAT_SECONDS)
        if self.is_held():
            self._objects.remove(_name_of(self._number))
        self._number = 0
        if _held.get(self._url) is self:
            del _held[self._url]

    def _create(self) -> bool:
        """Creates the next lock; returns `False` if another process was faster."""
        numbers = self._numbers()
        newest = max(numbers, default=0)
        if newest and not self._is_gone(newest):
            return False
        try:
            self._write(newest + 1, new=True)
        except FileExistsError:
            return False
        # Of a process that has found a folder without a lock meanwhile.
        if max(self._numbers(), default=0) != newest + 1:
            self._objects.remove(_name_of(newest + 1))
            return False
        self._number = newest + 1
        for number in numbers:
            self._objects.remove(_name_of(number))
        return True

    def _is_gone(self, number: int) -> bool:
        """Returns whether a lock's owner is gone; `False` if the lock is, too.

        Raises:
            FolderInUseError: If it is not.
        """
        content = self._read(number)
        owner = folder_lock.owner_in(content)
        if owner is not None and owner.get("machine") == _machine():
            process, started = owner.get("process"), owner.get("started")
            if started == _start_of(process):
                folder_lock.wait_for_end(
                    lambda: started != _start_of(process), self._url, owner
                )
            return True
        print(
            f"fastnet: waiting up to {folder_lock.STALE_SECONDS:.0f} s for a sign of "
            f"{folder_lock.named(owner)}, which has not released {self._url}",
            flush=True,
        )
        until = time.monotonic() + folder_lock.STALE_SECONDS
        while time.monotonic() < until:
            time.sleep(1.0)
            now = self._read(number)
            if now is None:
                return False
            if now != content:
                raise FolderInUseError(self._url, owner)
        return True

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(folder_lock.HEARTBEAT_SECONDS):
            self._owner["renewed"] += 1
            # The store may be away for a while.
            with contextlib.suppress(OSError):
                # One that another training has removed does not come back.
                if self.is_held():
                    self._write(self._number)

    def _numbers(self) -> list[int]:
        found = [_NAME.fullmatch(name) for name in self._objects.names()]
        return [int(match[1]) for match in found if match]

    def _write(self, number: int, *, new: bool = False) -> None:
        content = folder_lock.content_of(self._owner)
        self._objects.put(_name_of(number), content, new=new)

    def _read(self, number: int) -> bytes | None:
        try:
            return self._objects.read(_name_of(number))
        except FileNotFoundError:
            return None


def _name_of(number: int) -> str:
    return f"training-{number:09d}.lock"


def _machine() -> str:
    """Returns a name of the running system in which process ids are unique."""
    try:
        return f"{folder_lock.machine()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_of(process: Any) -> str | None:
    """Returns when a process began, in the kernel's terms; `None` if it is gone."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    # After the name, which may have spaces, in parentheses.
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


# The locks of this process, by folder.
_held: dict[str, RemoteLock] = {}


@atexit.register
def _release_all() -> None:
    for lock in list(_held.values()):
        lock.release()
