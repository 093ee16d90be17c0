"""The command line of Python that every worker runs."""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

from keras_fastnet.errors import UsageError


def interpreter_command(command: Sequence[str]) -> list[str]:
    """Returns the words that run `command` with the launcher's interpreter."""
    return [sys.executable, *command]


def check_command(command: Sequence[str]) -> None:
    """Checks, without importing anything, that Python can find the program to run.

    Args:
        command: The words that follow `python`: a script and its arguments, or `-m`,
            a module and its arguments.

    Raises:
        UsageError: If there is no such script or module.
    """
    if not command or (command[0] == "-m" and len(command) == 1):
        raise UsageError(
            "There must be a script or a module to run. Received: none. Name it "
            "after the options: `fastnet run --workers 2 train.py`, or "
            "`fastnet run --workers 2 -m package.train`."
        )
    if command[0] == "-m":
        _check_module(command[1])
    elif not os.path.isfile(command[0]):
        what = "a directory" if os.path.isdir(command[0]) else "no such file"
        raise UsageError(
            "The script must be an existing file. Received: "
            f"{command[0]} ({what}; the current directory is {os.getcwd()}). Check "
            "the path; to run a module, write `-m` before its name."
        )


def _check_module(name: str) -> None:
    spec = None
    path: list[str] | None = None
    parts = name.split(".")
    for depth in range(len(parts)):
        prefix = ".".join(parts[: depth + 1])
        spec = _find(prefix, path)
        if spec is None:
            raise UsageError(
                f"-m must name a module that Python can import. Received: {name} "
                f"({prefix} was not found). Check the name, install the package in "
                f"this environment ({sys.prefix}), or start from its directory."
            )
        path = list(spec.submodule_search_locations or [])
    if path and _find(f"{name}.__main__", path) is None:
        raise UsageError(
            f"A package given to -m must have a __main__ module. Received: {name}. "
            "Name one of its modules."
        )


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Finds a module without importing its parent packages, unlike `find_spec`."""
    if path is None:
        # `python -m` puts the current directory first.
        first = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
        if first is not None:
            return first
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
