"""Workers on several hosts: network namespaces joined by rate-limited links."""

import concurrent.futures
import re
import subprocess
import sys
import time

import pytest

from tests.cluster.network import Network
from tests.distributed.worker_pool import WorkerError, WorkerPool
from tests.equality.comparing import assert_equal

pytestmark = [pytest.mark.distributed, pytest.mark.hosts, pytest.mark.slow]

MEGABITS = 100
# By TensorFlow's heartbeats 8.5 to 11 s; the rest is for a busy machine.
LOSS_SECONDS = 20.0


@pytest.fixture(scope="module")
def network():
    try:
        network = Network(2, MEGABITS)
    except OSError as error:
        pytest.skip(str(error))
    yield network
    network.remove()


@pytest.fixture(scope="module")
def two_hosts(network):
    """Two workers on each of two hosts, whose ranks do not follow each other."""
    pool = WorkerPool(4, **network.places([0, 1, 0, 1]))
    yield pool
    pool.stop()


def test_fit_equals_one_device_and_crosses_the_links(network, one_device, two_hosts):
    one = one_device.run("fit", epochs=20)
    before = network.sent_bytes()
    several = two_hosts.run("fit", epochs=20)
    after = network.sent_bytes()
    assert_equal(one, several)
    gradient_bytes = sum(weight.nbytes for weight in one[0]["weights"])
    for sent_before, sent in zip(before, after, strict=True):
        # No all-reduce needs less, and all else that is sent is far less than that.
        assert sent - sent_before > gradient_bytes * one[0]["iterations"]


def test_ranks_of_a_host_form_a_row(network, two_hosts):
    first, second = network.address(0), network.address(1)
    for grid, described in two_hosts.run("layout"):
        assert grid == (2, 2)
        places = [
            set(re.findall(r"(\d) \(([\d.]+)\)", line))
            for line in described.splitlines()
        ]
        rows = [row for row in places if row]
        assert rows == [{("0", first), ("2", first)}, {("1", second), ("3", second)}]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 0])
def test_lost_host_ends_all_workers_in_fit(network, two_hosts, lost):
    """Those of the lost host end too, wherever TensorFlow's coordinator runs."""
    trained = two_hosts.run("fit", epochs=1)
    enough = 30 * sum(weight.nbytes for weight in trained[0]["weights"])

    def cut():
        start = network.sent_bytes()
        patience = time.monotonic() + 60
        while time.monotonic() < patience:
            sent = [a - b for a, b in zip(network.sent_bytes(), start, strict=True)]
            if min(sent) > enough:
                network.cut(lost)
                return time.monotonic()
            time.sleep(0.1)
        raise TimeoutError(f"`fit` did not begin: {sent} bytes sent")

    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            cutting = thread.submit(cut)
            with pytest.raises(WorkerError) as told:
                two_hosts.run("fit", epochs=10**9)
            ended = time.monotonic()
        assert ended - cutting.result() < LOSS_SECONDS
    finally:
        two_hosts.stop()
        network.mend(lost)
    reports = str(told.value).split("rank ")
    for rank in range(4):
        (report,) = (r for r in reports if r.startswith(f"{rank}:\n"))
        assert "UnavailableError" in report or "DeadlineExceededError" in report


TRAIN_AND_REACH = """
import json, os, socket
import keras, numpy as np
import keras_fastnet

strategy = keras_fastnet.TorusStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones(8), batch_size=8, verbose=0)
config = json.loads(os.environ["TF_CONFIG"])
for address in config["cluster"]["worker"]:
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
        assert connection.recv(1)
"""

REACH_UNTIL_TOLD = """
import select, socket, sys, time
attempts = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for port in map(int, sys.argv[2:]):
        try:
            with socket.create_connection((sys.argv[1], port), timeout=0.2) as server:
                server.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
                if server.recv(1):
                    print("answered", flush=True)
        except OSError:
            attempts += 1
print("attempts without an answer:", attempts > 100)
"""


def test_other_hosts_never_reach_workers_of_fastnet_run(network, tmp_path, environment):
    script = tmp_path / "train.py"
    script.write_text(TRAIN_AND_REACH)
    words = ["--workers", "2", "--port", "20500", str(script)]
    # As a user who is not root.
    plain = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]
    fastnet = [*plain, sys.executable, "-m", "keras_fastnet.cli", "run", *words]
    probe = [sys.executable, "-c", REACH_UNTIL_TOLD, network.address(0)]
    with subprocess.Popen(
        [*network.wrapper(1), *probe, "20500", "20501"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as stranger:
        result = subprocess.run(
            [*network.wrapper(0), *fastnet],
            env=environment,
            capture_output=True,
            text=True,
        )
        seen, _ = stranger.communicate("enough\n", timeout=60)
    assert result.returncode == 0, result.stderr
    assert "loopback" not in result.stderr
    assert seen == "attempts without an answer: True\n"
