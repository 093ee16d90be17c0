"""Runs workers of a rendezvous in threads of a test, without TensorFlow."""

import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import socket
import threading
import time

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import meet
from keras_fastnet.errors import ClusterError

FACTS = {"tensorflow": "2.21"}
PATIENCE = 60.0  # against hangs only


class Worker(threading.Thread):
    """Runs `meet` in a thread."""

    def __init__(
        self,
        addresses,
        rank,
        *,
        facts=FACTS,
        proposal=7,
        timeout=20.0,
        after=0.0,
        token=None,
    ):
        super().__init__()
        self.result = None
        self.seconds = None
        self._after = after
        cluster = Cluster(tuple(addresses), rank)
        self._arguments = (cluster, facts, proposal, timeout, f"node{rank}", token)
        self.nodes = None
        self.start()

    def run(self):
        time.sleep(self._after)
        start = time.monotonic()
        try:
            self.result, self.nodes = meet(*self._arguments)
        except Exception as error:
            self.result = error
        self.seconds = time.monotonic() - start

    def outcome(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        if isinstance(self.result, Exception):
            assert isinstance(self.result, ClusterError), repr(self.result)
            return str(self.result)
        return self.result


class _WorkerElsewhere:
    """A `Worker` of another process."""

    def __init__(self, pool, *arguments, **options):
        self._future = pool.submit(_meet, *arguments, **options)
        self.seconds = None

    def outcome(self):
        outcome, self.seconds = self._future.result(PATIENCE)
        return outcome


def _meet(*arguments, **options):
    worker = Worker(*arguments, **options)
    return worker.outcome(), worker.seconds


@contextlib.contextmanager
def other_process():
    """Yields what starts a `Worker` in a process with its own limit of open files."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        # It starts now, with the present limit.
        pool.submit(int).result(PATIENCE)
        yield functools.partial(_WorkerElsewhere, pool)


def outcomes(*workers):
    return [worker.outcome() for worker in workers]


def connect(address):
    """Connects as soon as a process listens."""
    host, port = address.split(":")
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=PATIENCE)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)


def say(connection, value):
    connection.sendall(json.dumps(value).encode() + b"\n")


def hello(addresses, rank):
    facts = {"workers": list(addresses), **FACTS}
    return {"hello": rank, "facts": facts, "node": "a", "patience": 30}


@contextlib.contextmanager
def accepted_follower(addresses, rank):
    """Does what rank 0 sees of a worker until the worker is accepted."""
    port = int(addresses[rank].split(":")[1])
    with ports.listening_socket(port) as listener, connect(addresses[0]) as connection:
        say(connection, hello(addresses, rank))
        with listener.accept()[0] as call, call.makefile() as lines:
            say(connection, {"echo": json.loads(lines.readline())})
        with connection.makefile() as lines:
            assert "heard" in lines.readline()
            assert "welcome" in lines.readline()
            yield connection
