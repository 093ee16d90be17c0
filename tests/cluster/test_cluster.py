"""`TF_CONFIG`: valid clusters, and the errors of all others."""

import json
import logging
import socket

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


def read(text):
    return read_tf_config({"TF_CONFIG": text})


def config(cluster, task):
    return json.dumps({"cluster": cluster, "task": task})


def test_workers_are_ranked_by_index():
    cluster = read(config({"worker": TWO}, {"type": "worker", "index": 1}))
    assert cluster == Cluster(addresses=tuple(TWO), rank=1)
    assert (cluster.size, cluster.address) == (2, "host1:12345")


@pytest.mark.parametrize(
    ("task", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_the_chief_has_rank_0(task, index, rank):
    jobs = {"worker": TWO, "chief": ["boss:1"]}
    cluster = read(config(jobs, {"type": task, "index": index}))
    assert cluster.addresses == ("boss:1", *TWO)
    assert cluster.rank == rank


@pytest.mark.parametrize(
    "text", ["{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}']
)
def test_configuration_without_a_cluster_is_none(text):
    assert read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "null",
        "[]",
        '"worker"',
        "[" * 100_000,
        "9" * 10_000,
        '{"cluster": null}',
        '{"cluster": ["host0:1"]}',
        '{"cluster": {"worker": ["a:1"]}, "task": "worker"}',
        '{"cluster": {"worker": ["a:1"]}, "task": null}',
        # Of N such tasks each would train alone.
        '{"task": {"type": "worker", "index": 1}}',
        '{"sparseCluster": {"worker": {"0": "a:1"}}, "task": {"index": 0}}',
    ],
    ids=lambda text: text[:20] or "empty",
)
def test_malformed_tf_config_raises(text):
    with pytest.raises(ClusterError, match=r"TF_CONFIG is malformed.*\n?.*Received"):
        read(text)


@pytest.mark.parametrize(
    ("jobs", "task", "index", "message"),
    [
        ({"worker": TWO}, "evaluator", 0, '"type" must be.*evaluator.*without TF_CONF'),
        ({"worker": TWO}, None, None, '"type" must be.*Received: None'),
        ({"worker": TWO}, ["worker"], 0, '"type" must be'),
        ({"worker": TWO, "ps": ["a:1"]}, "worker", 0, r"jobs \['ps'\]"),
        ({"worker": TWO, "evaluator": ["a:1"]}, "evaluator", 0, "'evaluator'.*Leave"),
        ({"master": ["a:1"], "worker": TWO}, "master", 0, "called `chief`"),
        ({"worker": TWO}, "worker", 2, "from 0 to 1.*Received: 2"),
        ({"worker": TWO}, "worker", None, "must be an integer.*Received: None"),
        ({"worker": TWO}, "worker", "0", "must be an integer.*Received: '0'"),
        ({"worker": TWO}, "worker", 0.0, "must be an integer.*Received: 0.0"),
        ({"worker": TWO}, "worker", True, "must be an integer.*Received: True"),
        ({"worker": TWO}, "chief", 0, "must be a job.*'chief'"),
        ({"worker": []}, "worker", 0, "must be a job.*'worker'"),
        ({"worker": TWO, "chief": ["a:1", "b:1"]}, "chief", 0, "at most one `chief`"),
        ({"worker": "host0:1"}, "worker", 0, "must be a list.*Received: 'host0:1'"),
        ({"worker": ["a:1", 2]}, "worker", 0, "must be a list"),
        ({"worker": ["a:1", "a:1"]}, "worker", 0, r"Received twice: \['a:1'\]"),
        ({"worker": ["a:1", "A:01"]}, "worker", 0, "Received twice"),
        ({"worker": ["a:1"], "chief": ["a:1"]}, "worker", 0, "Received twice"),
    ],
)
def test_broken_rules_raise_and_name_the_rule(jobs, task, index, message):
    with pytest.raises(ClusterError, match=message):
        make_cluster(jobs, task, index)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("host:1", ("host", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("trainer-0.trainer.ns.svc:8080", ("trainer-0.trainer.ns.svc", 8080)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_split_into_host_and_port(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "host", "host:", ":1", "host:0", "host:65536", "host:-1"),
        *("host:http", "::1:80", "grpc://host:1", "a host:1", "host:1 ", "host:1\n"),
        *("host:\u0661", "[]:1", "host:" + "1" * 5000),
    ],
)
def test_malformed_addresses_raise(address):
    with pytest.raises(ClusterError, match="must be `host:port`"):
        split_address(address)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cluster", "task", "worker", "chief", "type", "index", "x"]
            ),
            inner,
            max_size=3,
        )
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
    ("addresses", "expected"),
    [
        (["127.0.0.1:1", "localhost:2", "[::1]:3", "127.9.9.9:4"], True),
        (["127.0.0.1:1", "10.0.0.1:2"], False),
        (["localhost.example.com:1"], False),
        (["0.0.0.0:1"], False),
    ],
)
def test_loopback_addresses_are_recognized(addresses, expected):
    assert is_loopback(Cluster(tuple(addresses), 0)) is expected


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


def test_server_that_cannot_be_kept_to_loopback_is_reported(caplog):
    with reserved_ports(1) as (port,), caplog.at_level(logging.WARNING):
        with kept_to_loopback(Cluster((f"127.0.0.1:{port}",), 0)):
            pass
        with kept_to_loopback(Cluster((f"192.0.2.1:{port}",), 0)):
            pass
    assert [
        f"no socket of this process listens on port {port}" in text
        for text in caplog.messages
    ] == [True]
