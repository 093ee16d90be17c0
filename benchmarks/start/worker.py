"""One worker of `run.py`: notes when it has TensorFlow, and when its strategy."""

import json
import pathlib
import sys
import time

import keras  # noqa: F401, with which a script begins

import keras_fastnet

imported = time.time()
strategy = keras_fastnet.TorusStrategy()
found = {"imported": imported, "made": time.time()}
folder = pathlib.Path(sys.argv[1])
(folder / f"{strategy.rank}.json").write_text(json.dumps(found))
