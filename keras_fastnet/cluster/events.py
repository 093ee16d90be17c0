"""What a worker tells the launcher that started it: errors, backups, its position.

The launcher reads it when the worker has ended, however it ended. So it is written to
files, which remain when a process is killed. The launcher names them in the variable
`FASTNET_EVENTS`; without it nothing is written.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

VARIABLE = "FASTNET_EVENTS"
"""The environment variable with the path of this worker's file."""
_POSITION = ".position"

Event = Mapping[str, Any]


class Told(NamedTuple):
    """What a worker has told.

    Attributes:
        events: In their order.
        position: What the worker was doing last, up to two seconds before its end;
            `None` if it did not tell.
    """

    events: Sequence[Event] = ()
    position: str | None = None


def tell(kind: str, **facts: Any) -> None:
    """Adds an event to this worker's file.

    Args:
        kind: What has happened: "error", "position" (where the error came), "verdict"
            (which worker is late), "fit" (has begun), "backup" or "removed".
        **facts: What is known of it; JSON can hold it.
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    # Child processes inherit the variable.
    event = {"kind": kind, "process": os.getpid(), "time": time.time(), **facts}
    # Training is worth more than its report.
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def tell_position(text: str) -> None:
    """Replaces the text about what this worker is doing.

    Args:
        text: The text, such as "epoch 2, step 3".
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    new = f"{path}.new"
    with contextlib.suppress(OSError):
        Path(new).write_text(json.dumps([os.getpid(), text]), encoding="utf-8")
        os.replace(new, path + _POSITION)


def tell_errors() -> None:
    """From now on, tells the exception that ends the program."""
    if VARIABLE not in os.environ:
        return
    hook = sys.excepthook

    def report(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        tell("error", type=kind.__name__, message=str(error))
        hook(kind, error, traceback)

    sys.excepthook = report


def read(path: Path, process: int) -> Told:
    """Returns what a worker has told.

    Args:
        path: The worker's file; it may be missing.
        process: The worker's process id. What its child processes tell is left out.
    """
    events = []
    position = None
    for line in _text(path).splitlines():
        # A worker may be killed while it writes.
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event["process"] == process:
                events.append(event)
    with contextlib.suppress(ValueError):
        writer, text = json.loads(_text(path.with_name(path.name + _POSITION)))
        position = text if writer == process else None
    return Told(events, position)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
