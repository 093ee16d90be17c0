"""Starts the launcher in the background."""

import signal
import subprocess
import sys

import pytest

from tests.cluster.network import Network


@pytest.fixture(scope="module")
def network():
    """Two hosts with a link of 1 Gbit/s each."""
    try:
        network = Network(2, megabits=1000)
    except OSError as error:
        pytest.skip(str(error))
    yield network
    network.remove()


@pytest.fixture
def interruptible():
    """A shell starts background jobs with SIGINT ignored, which is inherited."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def start(environment, interruptible):
    """Starts the launcher in the background, and ends it in any case."""
    started = []

    def popen(*words, **options):
        command = [sys.executable, "-m", "keras_fastnet.cli", "run", *map(str, words)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        started.append(subprocess.Popen(command, env=environment, **options))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
