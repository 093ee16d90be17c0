"""The program that `run_on_hosts` starts on a host: a launcher, led over its stdin.

The first line of stdin is what to run. Every later line is the name of a signal that
the launcher gets. When stdin ends, because the machine where all was started or its
connection has ended, the launcher gets SIGTERM, which no `nohup` makes it ignore.
"""

import contextlib
import json
import os
import signal
import sys
import threading

from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher


def main() -> int:
    """Runs the launcher and returns its exit code."""
    order = json.loads(sys.stdin.readline())
    os.environ.update(order["variables"])
    threading.Thread(target=_obey, daemon=True).start()
    try:
        return launcher.run(command=order["command"], **order["options"])
    except UsageError as error:
        print(f"fastnet: error: {error}", file=sys.stderr)
        return 2


def _obey() -> None:
    for line in sys.stdin:
        with contextlib.suppress(KeyError):
            os.kill(os.getpid(), signal.Signals[line.strip()])
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread still reads stdin, which Python would wait for.
    os._exit(code)
