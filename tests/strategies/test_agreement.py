"""Workers that differ in one thing: refused by name, or trained right."""

import concurrent.futures
import functools
import json
import threading
import types

import numpy as np
import pytest

from keras_fastnet.cluster.worker_messages import Note, Notes
from keras_fastnet.errors import MismatchError
from keras_fastnet.strategies.agreement import compare_calls
from tests.distributed.differing_jobs import describe_differing, kinds
from tests.distributed.worker_pool import POOLS

# What the message names, where that is not the name of the difference.
NAMES = {
    "LargeBatchOptimizer": "optimizer",
    "loss_weights": "loss weights",
    "jit_compile": "jit compile",
    "number of examples": "shape",
    "dtype of data": "float64",
    "a dataset": "batch_size",
    "BackupAndRestore": "callbacks",
    "EarlyStopping": "callbacks",
    "evaluate first": "`evaluate`",
    "validation_data": "`fit` or `evaluate`",
    "predict of other batches": "batch_size",
    "learning rate in a callback": "learning_rate: norm 0.05",
    "weights in a callback": "at the end of epoch 1: sequential/dense/kernel: norm",
    "weights after a fit": "sequential/dense/kernel: norm",
    "length of a dataset": "batches",
    "shape of a dataset": "of",
    "sharding policy": "its own",
    "examples of evaluate": "shape",
}
ALLOWED = {
    "names of layers, progress and a monitor",
    "own data of unequal length",
}
# With real workers: those that no description shows, and one that a description does.
TRAINED = (
    "units",
    "evaluate first",
    "predict of other batches",
    "validation_data",
    "examples of evaluate",
    "learning rate in a callback",
    "weights in a callback",
    "weights after a fit",
    "own data of unequal length",
    "epochs",
    "names of layers, progress and a monitor",
)
DESCRIBED = [kind for kind in kinds() if kind not in TRAINED[1:-1]]


class Exchange:
    """Texts of two threads of one process; the strategy's are those of workers."""

    def __init__(self):
        self._texts = {}
        self._both = threading.Barrier(2)

    def of(self, rank):
        def gather(own, purpose, *, last=False):
            self._texts[rank] = json.dumps(own)
            self._both.wait()
            texts = [self._texts[each] for each in range(2)]
            self._both.wait()
            return [json.loads(text) for text in texts]

        return types.SimpleNamespace(gather=gather)


def compare(parts):
    """Returns the message of both ranks; empty if they agree."""
    exchange = Exchange()

    def outcome(rank):
        try:
            compare_calls(exchange.of(rank), "`fit`", parts[rank])
        except MismatchError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(outcome, range(2))
    assert first == second
    return first


@pytest.mark.parametrize("kind", DESCRIBED)
def test_description_names_what_differs(kind):
    parts = [describe_differing(kind, last=last) for last in (False, True)]
    text = compare(parts)
    if kind in ALLOWED:
        assert text == ""
    else:
        assert NAMES.get(kind, kind) in text


@functools.cache
def weights_without_difference(cluster):
    ((_, weights), _) = POOLS[cluster].run("train_differing", kind=None)
    return weights


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(
    "cluster", ["two_workers", pytest.param("two_mpi", marks=pytest.mark.slow)]
)
def test_differing_workers(request, cluster, kind):
    """Each difference is refused on all workers by name, or training is right."""
    pool = request.getfixturevalue(cluster)
    outcomes = pool.run("train_differing", kind=kind)
    if kind not in ALLOWED:
        assert {outcome for outcome, _ in outcomes} == {"refused"}, outcomes
        assert all(NAMES.get(kind, kind) in text for _, text in outcomes), outcomes
        return
    assert {outcome for outcome, _ in outcomes} == {"trained"}, outcomes
    (_, first), (_, second) = outcomes
    assert_same(first, second)
    if "unequal" not in kind:
        assert_same(first, weights_without_difference(cluster))


def assert_same(weights, expected):
    # Unlike `assert_array_equal`, it takes no NaN for equal.
    assert all(map(np.array_equal, weights, expected))
    assert len(weights) == len(expected)


def test_data_that_end_early_on_one_worker_are_named():
    step = Note("epoch {}, step {}", [2, 5], 0.0, "step")
    known = {0: step, 1: Note("the end of epoch {}", [2], 0.0, "outside"), 2: step}
    assert "the data of rank 1 ended after 4 batches" in Notes(3, known).deadlock()
    # One of them still computes.
    known[2] = step._replace(waits="")
    assert Notes(3, known).deadlock() is None


SETTINGS = """
import json, os
import keras_fastnet
import tensorflow as tf
from keras_fastnet.errors import ClusterError

task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=4096)
different = {"grid": "ring", "wire_dtype": "bfloat16"}
for name, value in different.items():
    try:
        keras_fastnet.TorusStrategy(**({name: value} if task else {}))
    except ClusterError as error:
        assert name in str(error), error
    else:
        raise SystemExit(f"{name} was accepted")
try:
    keras_fastnet.TorusStrategy(communication_options=options if task else None)
except ClusterError as error:
    assert "bytes_per_pack" in str(error), error
else:
    raise SystemExit("bytes_per_pack was accepted")
keras_fastnet.TorusStrategy()
"""


def test_unequal_settings_of_the_strategy_end_the_start(fastnet, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SETTINGS)
    done = fastnet("run", "--workers", 2, script)
    assert done.returncode == 0, done.stdout + done.stderr
