"""A worker of `notebook_launcher`: calls the function, and writes what it returns."""

import json
import linecache
import os
import pickle
import runpy
import sys
from pathlib import Path
from types import TracebackType

from keras_fastnet.launcher.notebook import copied

_OWN = (__file__, "<frozen runpy>", runpy.__file__)


def main() -> None:
    """Reads the function from a folder, and on rank 0 writes its result there."""
    folder = Path(sys.argv[1])
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    path, cells, call = pickle.loads(Path(folder, "task").read_bytes())
    sys.path += [entry for entry in path if entry not in sys.path]
    linecache.cache.update(cells)
    hook = sys.excepthook

    def show(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        hook(kind, error, _from_function(trace))

    sys.excepthook = show
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


def _from_function(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the notebook's function on."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in _OWN:
        rest = rest.tb_next
    return rest or trace


if __name__ == "__main__":
    main()
