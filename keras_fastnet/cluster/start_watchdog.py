"""Ends a process that hangs while TensorFlow's servers connect.

TensorFlow holds Python's global lock during that wait, which has no end where a
worker dies in this moment: no thread and no signal handler of the process can act.
A small helper process can.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_HELPER = """
import os
import select
import signal
import sys

pid, seconds, text = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGINT, signal.SIG_IGN)
# The pipe ends when the watched process does, or needs no watching any more.
ended = select.select([0], [], [], seconds)[0]
if not ended and os.getppid() == pid:
    print(text, file=sys.stderr, flush=True)
    os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def end_if_stuck(seconds: float, text: str) -> Iterator[None]:
    """Kills this process where the context takes too long.

    Args:
        seconds: How long it may take.
        text: What is then written to stderr.
    """
    command = [sys.executable, "-I", "-S", "-c", _HELPER]
    with subprocess.Popen(
        [*command, str(os.getpid()), str(seconds), text],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ):
        yield
