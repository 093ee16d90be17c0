"""Limits of memory that the kernel enforces: control groups of version 1 or 2."""

import contextlib
import os
import pathlib
import secrets
import time

_ROOT = pathlib.Path("/sys/fs/cgroup")
# By version: where the groups are, and the file of the limit.
_VERSIONS = (
    (_ROOT / "memory", "memory.limit_in_bytes"),
    (_ROOT, "memory.max"),
)


class MemoryLimit:
    """A control group in which a process gets hardly any further memory.

    The kernel kills the process with SIGKILL when it needs more. What the process had
    before it came into the group does not count.

    Args:
        size: Bytes that all processes in the group may add.

    Raises:
        OSError: If the machine does not allow it; the message says what is missing.
    """

    def __init__(self, size: int = 1 << 20):
        for root, limit in _VERSIONS:
            self._path = root / f"fastnet-{os.getpid()}-{secrets.token_hex(4)}"
            try:
                self._path.mkdir()
                # Only a file that the kernel has made, in a file system of groups.
                with (self._path / limit).open("r+") as file:
                    file.write(str(size))
                return
            except OSError as error:
                reason = error
                self.remove()
        raise OSError(f"a control group that limits memory needs root: {reason}")

    def add(self, pid: int) -> None:
        """Takes a process, with all its threads, into the group."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Returns how many processes the kernel has killed in the group."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                lines = (self._path / name).read_text().splitlines()
                return int(dict(line.split() for line in lines)["oom_kill"])
        raise OSError("the kernel does not count what it kills")

    def remove(self) -> None:
        """Removes the group, whose processes must have ended."""
        for _ in range(100):
            try:
                self._path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                # The kernel still removes what has ended.
                time.sleep(0.1)
            else:
                return
