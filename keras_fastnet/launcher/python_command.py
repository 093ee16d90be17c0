"""The command line of Python that every worker runs."""

import os
import re
import sys
from collections.abc import Sequence

from keras_fastnet.errors import UsageError


def interpreter_command(command: Sequence[str]) -> list[str]:
    """Returns the words that run a program with this process's interpreter.

    Args:
        command: A script and its arguments, or `-m`, a module and its arguments. A
            `python` in front is left out.

    Raises:
        UsageError: If there is nothing to run, or no such script.
    """
    words = list(command)
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        del words[0]
    if not words or words == ["-m"]:
        raise UsageError(
            "There must be a script or a module to run. Received: none. Name it "
            "after the options: `fastnet run --workers 2 train.py`, or "
            "`fastnet run --workers 2 -m package.train`."
        )
    # Python itself reports a module that it does not find.
    if not words[0].startswith("-") and not os.path.isfile(words[0]):
        what = "a directory" if os.path.isdir(words[0]) else "no such file"
        raise UsageError(
            "The script must be an existing file. Received: "
            f"{words[0]} ({what}; the current directory is {os.getcwd()}). Check "
            "the path; to run a module, write `-m` before its name."
        )
    return [sys.executable, *words]
