"""Fixtures of the meetings' tests."""

import threading
import time

import pytest

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.rendezvous import limits


@pytest.fixture
def addresses():
    with ports.reserved_ports(4) as reserved:
        yield tuple(f"127.0.0.1:{port}" for port in reserved)


@pytest.fixture
def nothing_left(monkeypatch):
    """Every thread has ended after the test."""
    monkeypatch.setattr(limits, "RETRY_SECONDS", 0.05)
    yield
    end = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert threading.active_count() == 1


@pytest.fixture
def soon(monkeypatch):
    """Shortens what is waited for after the decision."""
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.2)
    monkeypatch.setattr(limits, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(limits, "VERDICT_SECONDS", 1.5)
    monkeypatch.setattr(ports, "BUSY_SECONDS", 0.2)
