"""The socket over which `fastnet scale` asks a launcher for a number of workers."""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from keras_fastnet.errors import UsageError
from keras_fastnet.text import listed

FOLDER = "fastnet-"
"""Begins the name of a launcher's folder of temporary files."""
_NAME = "control-"
# The other end is a program on this machine that writes at once.
_REQUEST_SECONDS = 2.0
# The launcher may be reading much output.
_ANSWER_SECONDS = 60.0
_LONGEST = 4096


class Control:
    """The launcher's end: answers requests for another number of workers.

    Args:
        folder: The launcher's temporary folder, which only its user can enter.
        answer: Called with the number of workers; returns what follows from it, or
            raises `UsageError`.
    """

    def __init__(self, folder: Path, answer: Callable[[int], str]) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX)
        with _folder_as_short_path(folder) as short:
            self._socket.bind(f"{short}/{_NAME}{os.getpid()}")
        self._socket.listen()

    def close(self) -> None:
        """Closes the socket. Requests then find no launcher."""
        self._socket.close()

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when there is a request."""
        return self._socket.fileno()

    def serve(self) -> None:
        """Answers one request."""
        # The other end may be killed at any time.
        with contextlib.suppress(OSError, ValueError):
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(_REQUEST_SECONDS)
                workers = int(connection.recv(_LONGEST))
                try:
                    answer = {"done": self._answer(workers)}
                except UsageError as error:
                    answer = {"error": str(error)}
                connection.sendall(json.dumps(answer).encode())


def request(workers: int, process: int | None) -> str:
    """Asks a launcher of this user for a number of workers.

    Args:
        workers: The number.
        process: The launcher's process id; `None` if there is one launcher.

    Returns:
        What follows from the request.

    Raises:
        UsageError: If the number is not possible, or the launcher is not found.
    """
    with contextlib.ExitStack() as stack:
        found = {
            launcher: stack.enter_context(connection)
            for launcher, connection in _launchers().items()
        }
        chosen = list(found) if process is None else [process]
        if len(chosen) != 1 or chosen[0] not in found:
            received = listed("process", sorted(found)) if found else "none"
            raise UsageError(
                "There must be one `fastnet run` of yours on this machine with "
                "--min-workers, --max-workers, --max-restarts or --report, or machine "
                f"0 of --nnodes, or --pid must name one. Received: {received}"
                f"{'' if process is None else f', with --pid {process}'}. "
                + ("Pass --pid." if found else "Start it with --min-workers M.")
            )
        connection = found[chosen[0]]
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.sendall(str(workers).encode())
            text = b"".join(iter(lambda: connection.recv(_LONGEST), b""))
            answer = json.loads(text)
        except (OSError, ValueError) as error:
            raise UsageError(
                "`fastnet run` must answer. Received: nothing from process "
                f"{chosen[0]} ({error}). See whether it is about to end."
            ) from error
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["done"]


def _launchers() -> dict[int, socket.socket]:
    """Returns a connection to every launcher of this user, by process id."""
    found = {}
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*/{_NAME}*"):
        connection = socket.socket(socket.AF_UNIX)
        try:
            if path.parent.stat().st_uid != os.getuid():
                raise PermissionError
            with _folder_as_short_path(path.parent) as short:
                connection.connect(f"{short}/{path.name}")
        except OSError:
            # Left behind by a launcher that was killed.
            connection.close()
        else:
            found[int(path.name.removeprefix(_NAME))] = connection
    return found


@contextlib.contextmanager
def _folder_as_short_path(folder: Path):
    """Yields a path of the folder that fits the 108 bytes of a socket's address."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
