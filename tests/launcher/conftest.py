"""Starts the launcher in the background."""

import signal
import subprocess
import sys

import pytest


@pytest.fixture
def start(environment):
    """Starts the launcher in the background, and ends it in any case."""
    # A shell starts background jobs with SIGINT ignored, which is inherited.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    started = []

    def popen(*words, **options):
        command = [sys.executable, "-m", "keras_fastnet.cli", "run", *map(str, words)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        started.append(subprocess.Popen(command, env=environment, **options))
        return started[-1]

    yield popen
    signal.signal(signal.SIGINT, previous)
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
