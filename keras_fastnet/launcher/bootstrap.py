"""First program of a worker: makes it end with the launcher, then becomes Python.

An isolated interpreter runs this file with the launcher's process id, an interpreter
and its arguments. The program replaces itself with that interpreter, so the script
finds `sys.argv`, `sys.path`, `__main__` and the environment exactly as
`python script.py` makes them.
"""

import os
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Asks the kernel to kill this process with the launcher, then runs Python."""
    launcher, interpreter, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes
        import signal

        # The request survives exec. The launcher cannot do this itself: if it gets
        # SIGKILL, only the kernel can act.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(launcher):
        # The launcher ended before the kernel got the request.
        sys.exit(1)
    os.execv(interpreter, [interpreter, *arguments])


if __name__ == "__main__":
    main()
