"""Runs the scenarios on one of two workers of MultiWorkerMirroredStrategy.

    fastnet run --workers 2 -m benchmarks.traps.worker FOLDER

Writes its observations to `rank-R.json` in the folder.
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

from benchmarks.traps import scenarios

strategy = tf.distribute.MultiWorkerMirroredStrategy()
folder = pathlib.Path(sys.argv[1])
found = {
    scenario.__name__: scenario(strategy, str(folder))
    for scenario in scenarios.ON_TWO_WORKERS
}
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
(folder / f"rank-{rank}.json").write_text(json.dumps(found))
