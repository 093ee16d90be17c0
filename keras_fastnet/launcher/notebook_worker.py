"""A worker of `notebook_launcher`: calls the function, and writes what it returns."""

import json
import linecache
import os
import pickle
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType

from keras_fastnet.launcher.notebook import copied
from keras_fastnet.launcher.output import FAILURE_FOLLOWS

_OWN = (__file__, "<frozen runpy>", runpy.__file__)


def main() -> None:
    """Reads the function from a folder, and on rank 0 writes its result there."""
    folder = Path(sys.argv[1])
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    path, cells, call = pickle.loads(Path(folder, "task").read_bytes())
    sys.path += [entry for entry in path if entry not in sys.path]
    linecache.cache.update(cells)
    sys.excepthook = _show
    function, args = pickle.loads(call)
    value = function(*args)
    # On every rank: all must save a model.
    try:
        result = copied(value)
    except Exception as error:
        raise TypeError(
            "What the function returns must be of a kind that can be copied to the "
            f"notebook. Received: {type(value).__name__}, which cannot be ({error}). "
            "Return numbers, arrays or `fit`'s `history`, and save models to files."
        ) from error
    if not rank:
        Path(folder, "result").write_bytes(result)


def _show(
    kind: type[BaseException],
    error: BaseException,
    traceback_of_error: TracebackType | None,
) -> None:
    """Prints a traceback with the lines of a notebook's cells, from the function on.

    Before Python 3.13, the interpreter looks for lines in files only.
    """
    frame = traceback_of_error
    while frame is not None and frame.tb_frame.f_code.co_filename in _OWN:
        frame = frame.tb_next
    print(FAILURE_FOLLOWS, file=sys.stderr, flush=True)
    traceback.print_exception(kind, error, frame or traceback_of_error)


if __name__ == "__main__":
    main()
