"""`TF_CONFIG` and other descriptions of a cluster: valid ones, and errors."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.cluster.cluster_spec import (
    Cluster,
    is_loopback,
    make_cluster,
    read_tf_config,
    split_address,
)
from keras_fastnet.cluster.loopback import kept_to_loopback
from keras_fastnet.cluster.ports import port_socket, reserved_ports
from keras_fastnet.errors import ClusterError

TWO = ["host0:12345", "host1:12345"]
PATIENCE = 240.0  # against hangs only


def read(text):
    return read_tf_config({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("task", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_the_chief_has_rank_0(task, index, rank):
    jobs = {"worker": TWO, "chief": ["boss:1"]}
    task = {"type": task, "index": index}
    cluster = read(json.dumps({"cluster": jobs, "task": task}))
    assert cluster == Cluster(addresses=("boss:1", *TWO), rank=rank)


def test_configuration_without_a_cluster_is_none():
    assert read("{}") is None
    assert read('{"task": {"type": "worker", "index": 0}}') is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[" * 100_000,
        '{"cluster": ["host0:1"]}',
        '{"cluster": {"worker": ["a:1"]}, "task": null}',
        # Of N such tasks each would train alone.
        '{"task": {"type": "worker", "index": 1}}',
    ],
    ids=lambda text: text[:20] or "empty",
)
def test_malformed_tf_config_raises(text):
    with pytest.raises(ClusterError, match=r"TF_CONFIG is malformed.*\n?.*Received"):
        read(text)


@pytest.mark.parametrize(
    ("jobs", "task", "index", "message"),
    [
        ({"worker": TWO}, "evaluator", 0, "evaluator.*without TF_CONFIG"),
        ({"worker": TWO}, None, None, "Received: .*None"),
        ({"worker": TWO, "ps": ["a:1"]}, "worker", 0, r"jobs \['ps'\]"),
        ({"worker": TWO}, "worker", 2, "from 0 to 1.*Received: 2"),
        ({"worker": TWO}, "worker", "0", "Received: '0'"),
        ({"worker": TWO}, "worker", True, "Received: True"),
        ({"worker": TWO}, "chief", 0, "'chief'"),
        ({"worker": TWO, "chief": ["a:1", "b:1"]}, "chief", 0, "at most one `chief`"),
        ({"worker": "host0:1"}, "worker", 0, "must be a list.*Received: 'host0:1'"),
        ({"worker": ["a:1", "A:01"]}, "worker", 0, "Received twice"),
        ({"worker": ["a:1"], "chief": ["a:1"]}, "worker", 0, "Received twice"),
    ],
)
def test_broken_rules_raise_and_name_the_rule(jobs, task, index, message):
    with pytest.raises(ClusterError, match=message):
        make_cluster(jobs, task, index)


def test_addresses_are_split_into_host_and_port():
    assert split_address("trainer-0.ns.svc:65535") == ("trainer-0.ns.svc", 65535)
    assert split_address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", ":1", "host:0", "host:65536", "host:http", "::1:80"),
        *("grpc://host:1", "a host:1", "host:1\n", "host:\u0661", "host:" + "1" * 5000),
    ],
)
def test_malformed_addresses_raise(address):
    with pytest.raises(ClusterError, match="must be `host:port`"):
        split_address(address)


NAMES = st.sampled_from(["cluster", "task", "worker", "chief", "type", "index", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON.map(json.dumps) | st.text())
def test_arbitrary_json_gives_a_cluster_or_a_cluster_error(text):
    try:
        cluster = read(text)
    except ClusterError as error:
        assert "Received" in str(error)
    else:
        assert cluster is None or 0 <= cluster.rank < cluster.size


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *(("localhost:2", True), ("[::1]:3", True), ("127.9.9.9:4", True)),
        *(("10.0.0.1:2", False), ("localhost.example.com:1", False)),
    ],
)
def test_loopback_addresses_are_recognized(address, expected):
    assert is_loopback(Cluster(("127.0.0.1:1", address), 0)) is expected


def test_server_of_a_loopback_cluster_is_kept_to_the_loopback_interface(caplog):
    """A socket as TensorFlow makes it stands in for the server's."""
    with reserved_ports(1) as (port,), port_socket() as server:
        with kept_to_loopback(Cluster((f"127.0.0.1:{port}",), 0)):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", port))
            server.listen()
        device = server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        assert device.rstrip(b"\0") == b"lo"
        assert not caplog.messages
        server.close()
        with kept_to_loopback(Cluster((f"127.0.0.1:{port}",), 0)):
            pass
    assert f"no socket of this process listens on port {port}" in caplog.text


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

def config(index=0):
    return json.dumps({"cluster": {"worker": [own, other]},
                       "task": {"type": "worker", "index": index}})

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
pod = {"JOB_COMPLETION_INDEX": "0", "FASTNET_WORKERS": "2"}
os.environ.update(pod)
attempt("Slurm and Kubernetes", "{}")
for name in slurm:
    del os.environ[name]
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
CASES = {
    "resolver": 'The task\'s "type" must be',
    "resolver and TF_CONFIG": "must not describe different clusters",
    "TF_CONFIG and Slurm": "rank 0 of 2 from TF_CONFIG, and rank 0 of 3 from S",
    "Slurm and Kubernetes": "and rank 0 of 2 from a Kubernetes Indexed Job",
    "not counted": "INDEX=0 without FASTNET_WORKERS",
    "missing rank 0": "Rank 0 must reach rank 1 within 2 s",
    "busy port": "must be able to listen on its own port",
    "too late": "before TensorFlow runs its first operation",
}


@pytest.mark.distributed
def test_wrong_descriptions_raise(environment):
    with reserved_ports(2) as ports:
        done = subprocess.run(
            [sys.executable, "-c", REFUSED, *(f"127.0.0.1:{port}" for port in ports)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for case, message in CASES.items():
        assert message in outcomes[case], case


ONE_WORKER = """
import os, signal, sys
import tensorflow as tf
import keras_fastnet

resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": sys.argv[1:]}), "", "worker", 0
)
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
strategy = keras_fastnet.TorusStrategy(resolver, start_timeout=60)
after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
assert before == after, (before, after)
print("rank", strategy.rank, "of", strategy.num_workers, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


@pytest.mark.distributed
def test_one_worker_from_a_resolver_ends_on_sigterm(environment):
    """TensorFlow's server takes SIGTERM for a notice of preemption."""
    with reserved_ports(1) as (port,):
        done = subprocess.run(
            [sys.executable, "-c", ONE_WORKER, f"127.0.0.1:{port}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.stdout == "rank 0 of 1\n", done.stderr
    assert done.returncode == -signal.SIGTERM
