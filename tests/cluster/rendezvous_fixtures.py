"""Fixtures of the rendezvous tests."""

import threading
import time

import pytest

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.rendezvous import connections, dialer, follower, leader


@pytest.fixture
def addresses():
    with ports.reserved_ports(4) as reserved:
        yield tuple(f"127.0.0.1:{port}" for port in reserved)


@pytest.fixture
def nothing_left(monkeypatch):
    """Checks after the test that all of its threads have ended."""
    monkeypatch.setattr(dialer, "RETRY_SECONDS", 0.05)
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.02)
    assert set(threading.enumerate()) <= before


@pytest.fixture
def soon(monkeypatch):
    """Shortens the waits after the decision."""
    monkeypatch.setattr(leader, "LINGER_SECONDS", 0.2)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(leader, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(dialer, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(follower, "VERDICT_SECONDS", 1.5)
    monkeypatch.setattr(ports, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(follower, "REFUSED_SECONDS", 0.2)
