"""Prepares the Python of workers of `fastnet run`.

Training without a strategy raises an error, and the launcher learns where the traceback
of a failure begins.

Python imports this module before the script, because the launcher puts its folder first
in `PYTHONPATH`. The module undoes that and runs the environment's own
`sitecustomize`, so that the script finds everything as `python script.py` makes it.
"""

import importlib.machinery
import importlib.util
import os
import sys
from types import TracebackType

# As in `keras_fastnet/launcher/output.py`, which this file must not import.
_FAILURE_FOLLOWS = "fastnet: the traceback of a failure follows"
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_WATCH = os.path.join(
    os.path.dirname(os.path.dirname(_FOLDER)), "_keras", "lone_fit.py"
)


def _leave_path() -> None:
    """Removes this folder from the path of this process and its child processes."""
    rest = os.environ.get("PYTHONPATH", "").removeprefix(_FOLDER)
    if rest:
        os.environ["PYTHONPATH"] = rest.removeprefix(os.pathsep)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]


def _watch() -> None:
    # Loaded by its path, so that the script can import another keras_fastnet, or none.
    spec = importlib.util.spec_from_file_location("_fastnet_lone_fit", _WATCH)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.watch("`fastnet run`")


def _announce_failures() -> None:
    """Has a line precede the traceback of an exception that ends the program."""
    hook = sys.excepthook

    def announce(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        print(_FAILURE_FOLLOWS, file=sys.stderr, flush=True)
        hook(kind, error, traceback)

    sys.excepthook = announce


def _run_the_next() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_leave_path()
_watch()
_announce_failures()
_run_the_next()
