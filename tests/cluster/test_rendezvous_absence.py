"""A worker does not start, or dies during the rendezvous."""

import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.rendezvous import connections, follower
from tests.cluster.rendezvous_worker import (
    Worker,
    accepted_follower,
    connect,
    hello,
    outcomes,
    say,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_missing_follower_is_named_on_all_ranks(addresses, soon):
    workers = [Worker(addresses[:3], rank, timeout=0.6) for rank in (0, 1)]
    for text in outcomes(*workers):
        assert f"missing ranks: 2 ({addresses[2]})." in text
        assert "within 0.6 s" in text
    assert max(worker.seconds for worker in workers) < 4


def test_missing_rank_0_is_named_with_its_address(addresses, soon):
    worker = Worker(addresses[:2], 1, timeout=0.3)
    text = worker.outcome()
    assert "Rank 1 must reach rank 0 within 0.3 s" in text
    assert addresses[0] in text
    assert "refused" in text
    assert worker.seconds < 3


def test_a_late_rank_0_does_not_prolong_the_timeout_of_others(addresses, soon):
    early = Worker(addresses[:3], 1, timeout=1.0)
    leader = Worker(addresses[:3], 0, timeout=20.0, after=0.3)
    assert "missing ranks: 2" in early.outcome()
    assert "missing ranks: 2" in leader.outcome()
    assert early.seconds < 4
    assert leader.seconds < 4


def test_unknown_host_of_rank_0_is_named(addresses, soon):
    worker = Worker(["no-such-host.invalid:1", addresses[1]], 1, timeout=0.3)
    text = worker.outcome()
    assert "no-such-host.invalid:1" in text
    assert worker.seconds < 3


def test_impossible_host_name_raises_a_cluster_error(addresses, soon):
    worker = Worker(["a" * 70 + ".invalid:1", addresses[1]], 1, timeout=0.3)
    assert "must reach rank 0" in worker.outcome()


def test_slow_name_service_does_not_prolong_the_wait(addresses, soon, monkeypatch):
    gate = threading.Event()

    def look_up(*_, **__):
        gate.wait(30)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", look_up)
    worker = Worker(addresses[:2], 1, timeout=0.3)
    try:
        assert "no answer yet" in worker.outcome()
        assert worker.seconds < 2
    finally:
        gate.set()


def test_waiting_workers_log_what_they_wait_for(addresses, soon, monkeypatch, caplog):
    monkeypatch.setattr(connections, "FIRST_LOG_SECONDS", 0.3)
    with caplog.at_level(logging.WARNING):
        outcomes(*(Worker(addresses[:3], rank, timeout=0.6) for rank in (0, 1)))
    told = sorted(caplog.messages)
    assert len(told) == 2
    assert f"Rank 0 waits for 1 worker to start: 2 ({addresses[2]})" in told[0]
    assert "Rank 1 has reached rank 0" in told[1]


SCRIPT = """
import sys
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import meet

rank, *addresses = sys.argv[1:]
meet(Cluster(tuple(addresses), int(rank)), {"tensorflow": "2.21"}, 7, 60.0, "a")
"""


def test_follower_may_be_restarted(addresses):
    leader = Worker(addresses[:3], 0)
    with accepted_follower(addresses[:3], 1):
        pass
    again = [Worker(addresses[:3], rank) for rank in (1, 2)]
    assert outcomes(leader, *again) == [7] * 3


def test_follower_that_died_is_named_on_all_ranks(addresses, soon):
    leader = Worker(addresses[:3], 0, timeout=3.0)
    with accepted_follower(addresses[:3], 1):
        pass
    # Started now: with all three there at once, the workers would have met.
    follower = Worker(addresses[:3], 2, timeout=20.0)
    for text in outcomes(leader, follower):
        assert f"ranks: 1 ({addresses[1]}, which came and ended again)" in text
    assert follower.seconds < 15


def test_killed_rank_0_is_reported(addresses, monkeypatch, caplog):
    monkeypatch.setattr(connections, "FIRST_LOG_SECONDS", 0.0)
    monkeypatch.setattr(connections, "LOG_SECONDS", 0.1)
    command = [sys.executable, "-c", SCRIPT, "0", *addresses[:3]]
    with subprocess.Popen(command) as leader:
        try:
            follower = Worker(addresses[:3], 1, timeout=60.0)
            end = time.monotonic() + 30
            while not any("has reached rank 0" in text for text in caplog.messages):
                assert time.monotonic() < end
                time.sleep(0.02)
        finally:
            leader.kill()
        start = time.monotonic()
        assert "it closed the connection" in follower.outcome()
        assert time.monotonic() - start < 3


def test_hanging_rank_0_is_reported(addresses, monkeypatch):
    monkeypatch.setattr(follower, "VERDICT_SECONDS", 0.2)
    worker = Worker(addresses[:2], 1, timeout=0.6)
    with ports.listening_socket(int(addresses[0].split(":")[1])) as listener:
        connection = listener.accept()[0]
        with connection:
            say(connection, {"welcome": 1})
            assert "it gave no verdict" in worker.outcome()
    assert worker.seconds < 7


def test_hanging_follower_is_reported(addresses, soon):
    """It has sent its rank and does not answer: rank 0 must not wait for it."""
    leader = Worker(addresses[:2], 0, timeout=0.6)
    with connect(addresses[0]) as stuck:
        say(stuck, hello(addresses[:2], 1))
        assert "is not reached from there" in leader.outcome()
    assert leader.seconds < 6
