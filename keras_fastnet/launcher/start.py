"""`Start`: starts all workers of this machine, once or again after a failure."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.failure import Failure, find_failure, last_lines
from keras_fastnet.launcher.mpiexec import MpiRank, mpi_ranks
from keras_fastnet.launcher.supervisor import Signals, Supervisor
from keras_fastnet.launcher.worker_process import WorkerProcess

_AT_START = str(Path(__file__).with_name("at_start"))
# Outputs that are not kept are cut to their end when they are longer.
_LONGEST_OUTPUT = 1 << 23


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
    signals: Signals

    def run(self) -> Failure | None:
        """Starts all workers and waits until all have ended.

        Returns:
            The first failure; `None` if there was none.

        Raises:
            UsageError: If a process cannot be started.
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
            supervisor = Supervisor(workers, records, self.signals, self._shorten)
            supervisor.wait()
            if supervisor.first is None:
                return None
            return find_failure(
                workers,
                records,
                supervisor.first,
                supervisor.failed_at,
                supervisor.suspended,
            )

    def _worker(self, index: int, place: MpiRank, record: Path) -> WorkerProcess:
        environment = {**self.environments[index], **place.variables}
        environment["FASTNET_RUN"] = "1"
        # See at_start/sitecustomize.py.
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = (
            f"{_AT_START}{os.pathsep}{others}" if others else _AT_START
        )
        environment["FASTNET_LAUNCHER"] = str(os.getpid())
        environment["FASTNET_FAILURE"] = str(record)
        if not index:
            environment["FASTNET_IS_SHOWN"] = "1"
        cluster = json.loads(environment["TF_CONFIG"])["cluster"]
        if len(cluster["worker"]) > 1:
            environment["FASTNET_NEEDS_STRATEGY"] = "1"
        rank = self.first_rank + index
        try:
            with ExitStack() as stack:
                file = None
                if index:
                    file = stack.enter_context(self.output(index).open("ab"))
                return WorkerProcess(
                    rank, self.words, environment, file, place.descriptors
                )
        except OSError as error:
            raise UsageError(
                "This machine must be able to start all workers. Received: worker "
                f"{rank}, which cannot be started ({error}). Start fewer workers, or "
                "raise the limit that the error names."
            ) from error

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
        output = self.output(index)
        if index:
            where = f"its output: {output}"
            if self.log_dir is None:
                where = "--log-dir DIR keeps its whole output"
            lines.append(f"fastnet: the end of worker {failure.rank} ({where}):")
        if failure.recorded is not None:
            lines += failure.recorded.traceback.rstrip("\n").split("\n")
        elif index:
            lines += last_lines(output)
        return [*lines, f"fastnet: {failure.heading}"]

    def _shorten(self) -> None:
        """Cuts long outputs that go to no `log_dir`, so that disks do not fill up."""
        if self.log_dir is not None:
            return
        for index in range(1, len(self.environments)):
            output = self.output(index)
            if output.stat().st_size > _LONGEST_OUTPUT:
                end = "\n".join(last_lines(output))
                # The worker goes on at the end, since it appends.
                os.truncate(output, 0)
                with output.open("a") as file:
                    file.write(f"{end}\n")
