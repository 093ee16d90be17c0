"""Clusters that cannot be formed, or that break, with `TorusStrategy`."""

import json
import os
import signal
import subprocess
import sys

import pytest

from keras_fastnet.cluster.ports import reserved_ports

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

PATIENCE = 240.0  # against hangs only

# All attempts but the last fail before TensorFlow runs an operation.
REFUSED = """
import json, os, sys
import tensorflow as tf
import keras_fastnet
from keras_fastnet.errors import ClusterError
from keras_fastnet.cluster import ports

own, other = sys.argv[1:]
resolvers = tf.distribute.cluster_resolver
spec = tf.train.ClusterSpec({"worker": [own, other]})
outcomes = {}

def attempt(name, config, **arguments):
    os.environ["TF_CONFIG"] = config
    try:
        keras_fastnet.TorusStrategy(**arguments)
        message = "no error"
    except ClusterError as error:
        message = str(error)
    except Exception as error:
        message = "another error: " + repr(error)
    outcomes[name] = message

def config(task="worker", index=0, **cluster):
    return json.dumps({"cluster": {"worker": [own, other], **cluster},
                       "task": {"type": task, "index": index}})

# The resolver is read first, and a valid TF_CONFIG beside it does not help.
attempt("resolver", config(), cluster_resolver=resolvers.SimpleClusterResolver(spec))
attempt(
    "resolver and TF_CONFIG",
    config(index=1),
    cluster_resolver=resolvers.SimpleClusterResolver(spec, "", "worker", 0),
)
slurm = {"PROCID": "0", "NODEID": "0", "LOCALID": "0", "STEP_NUM_TASKS": "3",
         "STEP_NODELIST": "n[1-3]", "STEP_TASKS_PER_NODE": "1(x3)"}
slurm = {"SLURM_" + name: value for name, value in slurm.items()}
os.environ.update(slurm)
attempt("TF_CONFIG and Slurm", config())
os.environ["RAY_RAYLET_PID"] = "7"
attempt("Slurm around Ray", config(), start_timeout=2)
del os.environ["RAY_RAYLET_PID"]
pod = {"JOB_COMPLETION_INDEX": "0", "FASTNET_WORKERS": "2"}
os.environ.update(pod)
attempt("Slurm and Kubernetes", "{}")
for name in slurm:
    del os.environ[name]
attempt("TF_CONFIG and Kubernetes", config(index=1))
attempt("no subdomain", "{}")
del os.environ["FASTNET_WORKERS"]
attempt("not counted", "{}")
del os.environ["JOB_COMPLETION_INDEX"]
attempt("missing rank 0", config(index=1), start_timeout=2)
with ports.listening_socket(int(own.split(":")[1])):
    attempt("busy port", config())
tf.zeros([])
attempt("too late", config())
print(json.dumps(outcomes))
"""

FIT = """
import signal, sys
import numpy as np
from keras_fastnet._keras.keras_api import keras
import tensorflow as tf
import keras_fastnet

resolver = None
if len(sys.argv) > 1:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": sys.argv[1:]}), "", "worker", 0
    )
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
strategy = keras_fastnet.TorusStrategy(resolver, start_timeout=60)
after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
assert before == after, (before, after)
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")

class Report(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            print("rank", strategy.rank, "of", strategy.num_workers, flush=True)

x = np.ones([8, 4], "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=10**9, verbose=0, callbacks=[Report()])
"""

DIE_AFTER_THE_RENDEZVOUS = """
import json, os
import keras_fastnet
from keras_fastnet.cluster import start

meet, kill = start.meet, start.killed_after
start.killed_after = lambda seconds, *words: kill(4.0, *words)

def meet_and_die(*arguments):
    agreed = meet(*arguments)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        os._exit(3)
    return agreed

start.meet = meet_and_die
keras_fastnet.TorusStrategy()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a Python program, and ends it in any case."""
    started = []

    def popen(program, *words, cluster=None, task=None):
        ours = ("TF_", "PYTEST", "COV_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        threads = {f"TF_NUM_{pool}_THREADS": "1" for pool in ("INTRAOP", "INTEROP")}
        environment = {**kept, **threads, "CUDA_VISIBLE_DEVICES": ""}
        if cluster is not None:
            kind, index = task
            environment["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": {"type": kind, "index": index}}
            )
        with (tmp_path / f"{len(started)}.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *words],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        process.errors = tmp_path / f"{len(started)}.err"
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def refused():
    with reserved_ports(2) as ports:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("TF_CONFIG", None)
        done = subprocess.run(
            [sys.executable, "-c", REFUSED, *(f"127.0.0.1:{port}" for port in ports)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("resolver", 'The task\'s "type" must be'),
        ("resolver and TF_CONFIG", "must not describe different clusters"),
        ("TF_CONFIG and Slurm", "rank 0 of 2 from TF_CONFIG, and rank 0 of 3 from S"),
        ("Slurm around Ray", "missing ranks: 1"),
        ("Slurm and Kubernetes", "and rank 0 of 2 from a Kubernetes Indexed Job"),
        ("TF_CONFIG and Kubernetes", "rank 1 of 2 from TF_CONFIG, and rank 0 of 2"),
        ("no subdomain", "must reach each other by name"),
        ("not counted", "INDEX=0 without FASTNET_WORKERS"),
        ("missing rank 0", "Rank 1 must reach rank 0 within 2 s"),
        ("busy port", "must be able to listen on its own port"),
        ("too late", "before TensorFlow runs its first operation"),
    ],
)
def test_wrong_descriptions_raise(refused, case, message):
    assert message in refused[case]


def test_one_worker_from_a_resolver_ends_on_sigterm(start):
    with reserved_ports(1) as ports:
        process = start(FIT, f"127.0.0.1:{ports[0]}")
        assert process.stdout.readline() == "rank 0 of 1\n", process.errors.read_text()
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_watchdog_kills_a_worker_whose_server_cannot_connect(start):
    with reserved_ports(2) as ports:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        survivor, victim = (
            start(DIE_AFTER_THE_RENDEZVOUS, cluster=cluster, task=("worker", index))
            for index in range(2)
        )
        assert victim.wait(PATIENCE) == 3
        assert survivor.wait(PATIENCE) == -signal.SIGKILL
        text = survivor.errors.read_text()
        assert "TensorFlow's servers must connect within 300 s" in text
        assert cluster["worker"][0] in text
        assert "These ranks do not answer: 1." in text
