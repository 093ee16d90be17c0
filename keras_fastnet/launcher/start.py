"""`Start`: starts all workers of this machine, once or again after a failure."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from keras_fastnet.launcher.failure import Failure, find_failure, last_lines
from keras_fastnet.launcher.mpiexec import MpiRank, mpi_ranks
from keras_fastnet.launcher.supervisor import Supervisor
from keras_fastnet.launcher.worker_process import WorkerProcess

_AT_START = str(Path(__file__).with_name("at_start"))


@dataclasses.dataclass(frozen=True)
class Start:
    """What every start of the workers of this machine needs.

    Attributes:
        words: The interpreter and its arguments.
        environments: All variables of each worker, by its number on this machine.
        first_rank: The rank of the first worker of this machine. Its output is shown.
        folder: A temporary folder.
        log_dir: Receives the output of the other workers; `None` to keep none of it.
        mpi: Whether the workers are also ranks of an MPI world.
        signals: The signals to this process, which end the workers.
    """

    words: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    first_rank: int
    folder: Path
    log_dir: Path | None
    mpi: bool
    signals: Sequence[int]

    def run(self) -> Failure | None:
        """Starts all workers and waits until all have ended.

        Returns:
            The first failure; `None` if there was none.

        Raises:
            UsageError: If `mpiexec` cannot start ranks.
        """
        number = len(self.environments)
        records = [self.folder / f"failure-{index}" for index in range(number)]
        for record in records:
            record.unlink(missing_ok=True)
        with ExitStack() as stack:
            places = [MpiRank()] * number
            if self.mpi:
                places = stack.enter_context(mpi_ranks(number))
            workers = []
            for index, place in enumerate(places):
                workers.append(self._worker(index, place, records[index]))
                stack.callback(workers[-1].close)
            supervisor = Supervisor(workers, records, self.signals)
            supervisor.wait()
            return find_failure(workers, records, supervisor)

    def _worker(self, index: int, place: MpiRank, record: Path) -> WorkerProcess:
        environment = {**self.environments[index], **place.variables}
        environment["FASTNET_RUN"] = "1"
        # See at_start/sitecustomize.py.
        paths = [_AT_START, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["FASTNET_LAUNCHER"] = str(os.getpid())
        environment["FASTNET_FAILURE"] = str(record)
        if not index:
            environment["FASTNET_IS_SHOWN"] = "1"
        if len(json.loads(environment["TF_CONFIG"])["cluster"]["worker"]) > 1:
            environment["FASTNET_NEEDS_STRATEGY"] = "1"
        rank = self.first_rank + index
        common = rank, self.words, environment
        if not index:
            return WorkerProcess(*common, descriptors=place.descriptors)
        with self.output(index).open("ab") as file:
            # Progress bars would fill the disk.
            shown = subprocess.DEVNULL if self.log_dir is None else file
            return WorkerProcess(*common, (shown, file), place.descriptors)

    def output(self, index: int) -> Path:
        """Returns the file with a worker's output; that of the first one is shown.

        Args:
            index: The number of the worker on this machine.
        """
        return (self.log_dir or self.folder) / f"rank-{self.first_rank + index}.log"

    def message(self, failure: Failure) -> list[str]:
        """Returns the lines about a failure, the most telling one last.

        Args:
            failure: The failure.
        """
        lines = []
        index = failure.rank - self.first_rank
        if index:
            where = f"its output: {self.output(index)}"
            if self.log_dir is None:
                where = "--log-dir DIR keeps its whole output"
            lines.append(f"fastnet: the end of worker {failure.rank} ({where}):")
        if failure.recorded is not None:
            lines += failure.recorded.traceback.rstrip("\n").split("\n")
        elif index:
            lines += last_lines(self.output(index))
        return [*lines, f"fastnet: {failure.heading}"]
