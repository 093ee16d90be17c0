"""Workers that are suspended, late, lost or in another call are named by the others."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_fastnet.cluster.ports import reserved_ports

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

SCRIPT = str(Path(__file__).with_name("late_training.py"))
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
PATIENCE = 240.0  # against hangs only
LIMITS = {"wait_timeout": 20.0, "start_timeout": 30.0}


class Workers:
    """Processes that train together.

    Args:
        count: Number of workers.
        transport: `"grpc"` or `"mpi"`.
        words: Arguments of the script.
        folder: A folder for their output.
    """

    def __init__(self, count, transport, words, folder):
        self._logs = []
        self._stack = reserved_ports(count)
        ports = self._stack.__enter__()
        threads = {f"TF_NUM_{pool}_THREADS": "1" for pool in ("INTRAOP", "INTEROP")}
        kept = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment = {**kept, **threads, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, SCRIPT, *map(str, words)]
        starts = [([MPIEXEC, "-n", str(count), *command], environment)]
        if transport == "grpc":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            configs = [
                {"cluster": cluster, "task": {"type": "worker", "index": rank}}
                for rank in range(count)
            ]
            starts = [
                (command, {**environment, "TF_CONFIG": json.dumps(config)})
                for config in configs
            ]
        self.processes = []
        for number, (words, variables) in enumerate(starts):
            self._logs.append(folder / f"{number}.log")
            with self._logs[-1].open("wb") as log:
                self.processes.append(
                    subprocess.Popen(words, env=variables, stdout=log, stderr=log)
                )

    def texts(self):
        return [log.read_text(errors="replace") for log in self._logs]

    def ended(self, victim):
        """Waits for the others; returns what each has written."""
        others = [p for i, p in enumerate(self.processes) if i != victim]
        if len(self.processes) == 1:
            others = self.processes
        for process in others:
            try:
                assert process.wait(PATIENCE) != 0
            except subprocess.TimeoutExpired:
                pytest.fail("\n".join(self.texts()))
        texts = zip(self.processes, self.texts(), strict=True)
        return [text for process, text in texts if process in others]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for text in self.texts():
            # Ranks of mpiexec that are suspended.
            for pid in re.findall(r"the victim (\d+)", text):
                command = Path(f"/proc/{pid}/cmdline")
                if command.exists() and SCRIPT in command.read_text():
                    os.kill(int(pid), signal.SIGKILL)
        self._stack.__exit__(None, None, None)


@pytest.fixture
def reports(tmp_path):
    """Starts workers, waits until all but the victim end, and returns their output."""
    started = []

    def run(transport, action, place, victim, count=2, **options):
        words = (action, place, victim, json.dumps({**LIMITS, **options}))
        workers = Workers(count, transport, words, tmp_path)
        started.append(workers)
        return workers.ended(victim)

    yield run
    for workers in started:
        workers.end()


def cases(*quick):
    """All carriers, places and victims; those that are not `quick` are slow."""
    return [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.slow)
        for case in (
            (transport, place, victim)
            for transport in ("grpc", "mpi")
            for place in ("meeting", "servers", "building", "training", "validation")
            for victim in range(2)
        )
    ]


@pytest.mark.parametrize(
    ("transport", "place", "victim"),
    cases(
        ("grpc", "training", 0),
        ("mpi", "training", 0),
        ("grpc", "building", 1),
        ("mpi", "validation", 1),
    ),
)
def test_suspended_rank_is_named(reports, transport, place, victim):
    expected = {
        "servers": f"These ranks do not answer: {victim}.",
        "meeting": f"missing ranks: {victim}|Rank 1 must reach rank 0",
    }.get(place, f"ClusterError: .*rank {victim} does not answer")
    if (transport, place) == ("mpi", "meeting"):
        # MPI does not start without the rank, or has no message of it.
        expected = f"no message of rank {victim}|MPI does not say which"
    for text in reports(transport, "suspend", place, victim):
        assert re.search(expected, text), text
        if place == "validation" and victim:
            # The chief has what each was doing last.
            assert f"rank {victim}: validation of epoch 1, step 1" in text


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", "mpi"])
def test_rank_that_sleeps_in_a_callback_is_named(reports, transport):
    for text in reports(transport, "sleep", "training", 1, count=3):
        assert "rank 1 is late" in text
        assert re.search(
            r"rank 1: epoch 1, callbacks or data after step 1, for \d+ s", text
        )
        assert re.search(r"ranks 0 and 2: [^;]*waiting for others", text)


@pytest.mark.parametrize(
    ("transport", "action", "expected"),
    [
        ("grpc", "raise", "rank 1 failed in epoch 1, [^:]*: ValueError: on purpose"),
        ("grpc", "kill", "rank 1 does not answer"),
        ("mpi", "leave", "rank 1 has left the program"),
    ],
)
def test_rank_that_ends_is_named(reports, transport, action, expected):
    for text in reports(transport, action, "training", 1):
        assert re.search(expected, text), text


@pytest.mark.parametrize(
    "transport", ["grpc", pytest.param("mpi", marks=pytest.mark.slow)]
)
def test_data_that_end_early_on_one_worker_are_named(reports, transport):
    """Long before `wait_timeout`."""
    for text in reports(transport, "data", "", 1, wait_timeout=PATIENCE):
        assert "the data of rank 1 ended after 4 batches" in text


@pytest.mark.slow
def test_different_sums_end_in_time(reports):
    for text in reports("grpc", "other", "nowhere", 1):
        assert "wait for one another" in text
