"""A worker of `notebook_launcher`: calls the function, and writes its result."""

import json
import linecache
import os
import pickle
import sys
from pathlib import Path

from keras_fastnet.launcher.notebook import copied


def main() -> None:
    """Reads the function from a folder, and on rank 0 writes its result there."""
    folder = Path(sys.argv[1])
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    path, cells, call = pickle.loads(Path(folder, "task").read_bytes())
    sys.path += [entry for entry in path if entry not in sys.path]
    linecache.cache.update(cells)
    function, args = pickle.loads(call)
    value = function(*args)
    # On every rank, since all must take part in saving a model.
    try:
        result = copied(value)
    except Exception as error:
        raise TypeError(
            "The function's result must be copyable to the "
            f"notebook. Received: {type(value).__name__}, which is not ({error}). "
            "Return numbers, arrays or `fit`'s `history`, and save models to files."
        ) from error
    if not rank:
        Path(folder, "result").write_bytes(result)


if __name__ == "__main__":
    main()
