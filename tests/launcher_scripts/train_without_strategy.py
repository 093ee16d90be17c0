"""Trains without a strategy, in the ways that its arguments name.

    train_without_strategy.py FOLDER [use] [import] [alone]

It writes this worker's final weight to `rank-R` in the folder.
"""

import json
import os
import pathlib
import sys

import keras
import numpy as np

folder, *words = sys.argv[1:]
if "import" in words:
    import keras_fastnet
rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

x = np.ones((4, 1), "float32")
keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.evaluate(x, x, verbose=0)
model.predict(x, verbose=0)
print("evaluated", flush=True)
if "alone" in words:
    with keras_fastnet.train_alone():
        model.fit(x, x, verbose=0)
elif "use" not in words:
    model.fit(x, x, verbose=0)
weight = float(model.get_weights()[0].item())
pathlib.Path(folder, f"rank-{rank}").write_text(f"{weight}")
