"""First program of a worker: ties its life to the launcher's, then becomes Python.

It is run as a file, by an isolated interpreter, with the launcher's process id, a
folder or nothing, the interpreter and its arguments. It replaces itself with that
interpreter, so the script finds `sys.argv`, `sys.path`, `__main__` and the environment
exactly as `python script.py` makes them. Python imports the folder's `sitecustomize`
first, which sees to that too.
"""

import os
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Asks the kernel to end this process with the launcher, then runs Python."""
    launcher, folder, interpreter, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes
        import signal

        # The request survives exec. A handler of the launcher cannot do this: only
        # the kernel acts when the launcher is ended with SIGKILL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(launcher):
        # The launcher ended before the request was in force.
        sys.exit(1)
    if folder:
        others = os.environ.get("PYTHONPATH")
        path = f"{folder}{os.pathsep}{others}" if others else folder
        os.environ["PYTHONPATH"] = path
    os.execv(interpreter, [interpreter, *arguments])


if __name__ == "__main__":
    main()
