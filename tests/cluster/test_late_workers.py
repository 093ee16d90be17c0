"""Workers that are suspended, late or make other calls are named by the others."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_fastnet.cluster.ports import reserved_ports

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

SCRIPT = str(Path(__file__).with_name("late_training.py"))
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
PATIENCE = 180.0  # against hangs only
LIMITS = {"wait_timeout": 10.0, "start_timeout": 20.0}


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

    def run(transport, action, place, victim, count=3, **options):
        words = (action, place, victim, json.dumps({**LIMITS, **options}))
        workers = Workers(count, transport, words, tmp_path)
        started.append(workers)
        return workers.ended(victim)

    yield run
    for workers in started:
        workers.end()


ALL = [
    (transport, place, victim)
    for transport in ("grpc", "mpi")
    for place in ("servers", "building", "training", "validation")
    for victim in range(3)
]
IN_CI = {("grpc", "training", 0), ("mpi", "validation", 1)}


@pytest.mark.parametrize(
    ("transport", "place", "victim"),
    [
        pytest.param(*case, marks=[] if case in IN_CI else pytest.mark.slow)
        for case in ALL
    ],
)
def test_suspended_rank_is_named(reports, transport, place, victim):
    texts = reports(transport, "suspend", place, victim)
    for text in texts:
        expected = f"rank {victim} does not answer"
        if place == "servers":
            expected = f"These ranks do not answer: {victim}."
        assert expected in text
        assert place == "servers" or "ClusterError: " in text
    if place == "validation" and victim:
        # The chief has what each was doing last.
        assert f"rank {victim}: validation of epoch 1, step 1" in texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(3))
def test_rank_that_is_suspended_before_the_meeting_is_named(reports, victim):
    texts = reports("grpc", "suspend", "meeting", victim)
    for rank, text in enumerate(texts):
        found = "Rank 1 must reach rank 0|Rank 2 must reach rank 0"
        assert re.search(f"missing ranks: {victim}|{found}", text), rank


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(3))
def test_mpi_ranks_end_if_one_is_suspended_before_mpi_starts(reports, victim):
    (text,) = reports("mpi", "suspend", "meeting", victim)
    assert re.search(f"no message of rank {victim}|MPI does not say which", text)


@pytest.mark.parametrize(
    "transport", ["grpc", pytest.param("mpi", marks=pytest.mark.slow)]
)
def test_rank_that_sleeps_in_a_callback_is_named(reports, transport):
    for text in reports(transport, "sleep", "training", 1):
        assert "rank 1 is late" in text
        assert "ClusterError: " in text
        assert re.search(
            r"rank 1: epoch 1, callbacks or data after step 1, for \d+ s", text
        )
        assert re.search(r"ranks 0 and 2: [^;]*waiting for others", text)


@pytest.mark.slow
def test_different_sums_end_in_time(reports):
    for text in reports("grpc", "other", "nowhere", 1, count=2):
        assert "wait for one another" in text


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tensorflow", "mpi"])
def test_launcher_names_and_kills_a_suspended_worker(fastnet, transport):
    began = time.monotonic()
    options = json.dumps({"wait_timeout": 10.0})
    done = fastnet(
        *("run", "--workers", 2, "--transport", transport),
        *(SCRIPT, "suspend", "training", 1, options),
    )
    assert done.returncode == 1, done.stderr
    assert "worker 1 was suspended" in done.stderr
    assert "rank 1 does not answer" in done.stderr
    (pid,) = re.findall(r"the victim (\d+)", done.stdout + done.stderr) or ["0"]
    assert not Path(f"/proc/{pid}").exists()
    assert time.monotonic() - began < PATIENCE
