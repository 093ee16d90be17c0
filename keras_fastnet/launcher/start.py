"""One start of all workers, from their environments to how each has ended."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from keras_fastnet.cluster import events
from keras_fastnet.launcher.failure import WorkerEnd
from keras_fastnet.launcher.mpiexec import MpiRank, mpi_ranks
from keras_fastnet.launcher.output import Display, WorkerOutput
from keras_fastnet.launcher.supervisor import Supervisor
from keras_fastnet.launcher.worker_environment import cluster_configuration
from keras_fastnet.launcher.worker_process import WorkerProcess


@dataclasses.dataclass(frozen=True)
class Starter:
    """Starts the workers, all of them or those that are left.

    A slot is the number of a worker of the first start. It keeps its port, GPUs and
    threads. Ranks are given out again in every start.

    Attributes:
        command: The words that follow `python`.
        environment: The variables that the workers inherit.
        variables: The variables of each slot.
        ports: The port of each slot.
        logs: The log of each worker of this machine, by rank, or `None`.
        all_output: Whether to show the whole output of every worker.
        tf_logs: Whether to show TensorFlow's information lines.
        has_gpus: Whether there are GPUs, so that errors about them are shown.
        independent: Whether each worker may train a separate model.
        mpi: Whether the workers are also ranks of an MPI world.
        folder: Receives the files of `keras_fastnet.cluster.events`; `None` if none
            are written.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    variables: Sequence[Mapping[str, str]]
    ports: Sequence[int]
    logs: Sequence[IO[str] | None]
    all_output: bool
    tf_logs: bool
    has_gpus: bool
    independent: bool
    mpi: bool
    folder: Path | None

    def run(
        self,
        slots: Sequence[int],
        supervisor: Supervisor,
        display: Display,
        addresses: Sequence[str],
        first_rank: int,
    ) -> tuple[int, list[WorkerEnd]]:
        """Starts a worker for each slot and waits until all have ended.

        Args:
            slots: The slots, by the worker's rank.
            supervisor: Watches the workers.
            display: Shows their output.
            addresses: The addresses of all workers, of other machines too.
            first_rank: The rank of the first worker of this machine.

        Returns:
            The exit code of the start, and how each worker here ended, by rank.

        Raises:
            OSError: If a process could not be started.
            UsageError: If `mpiexec` fails.
        """
        started: list[tuple[WorkerProcess, WorkerOutput]] = []
        with ExitStack() as stack:
            ranks_of_mpi = [MpiRank()] * len(slots)
            if self.mpi:
                ranks_of_mpi = stack.enter_context(mpi_ranks(len(slots)))
            stack.callback(supervisor.finish)
            for index, (slot, mpi_rank) in enumerate(
                zip(slots, ranks_of_mpi, strict=True)
            ):
                rank = first_rank + index
                output = WorkerOutput(
                    rank,
                    display,
                    show_all=self.all_output,
                    tf_logs=self.tf_logs,
                    gpus=self.has_gpus,
                    log=self.logs[index],
                )
                worker = WorkerProcess(
                    rank,
                    self.command,
                    {
                        **self.environment,
                        **self.variables[slot],
                        "TF_CONFIG": cluster_configuration(addresses, rank),
                        **mpi_rank.variables,
                        **self._events_variable(rank),
                    },
                    mpi_rank.descriptors,
                    must_use_strategy=len(addresses) > 1 and not self.independent,
                )
                supervisor.add(worker, output)
                started.append((worker, output))
            exit_code = supervisor.wait()
        ends = [
            _end(slot, worker, output, self.told_by(worker))
            for slot, (worker, output) in zip(slots, started, strict=True)
        ]
        return exit_code, ends

    def told_by(self, worker: WorkerProcess) -> events.Told:
        """Returns what a worker has told so far."""
        if self.folder is None:
            return events.Told()
        return events.read(self.folder / str(worker.rank), worker.pid)

    def _events_variable(self, rank: int) -> dict[str, str]:
        if self.folder is None:
            return {}
        return {events.VARIABLE: str(self.folder / str(rank))}


def _end(
    slot: int, worker: WorkerProcess, output: WorkerOutput, known: events.Told
) -> WorkerEnd:
    position = [event["text"] for event in known.events if event["kind"] == "position"]
    return WorkerEnd(
        rank=worker.rank,
        slot=slot,
        exit_code=worker.exit_code,
        lines=list(output.last_lines),
        unseen=output.unseen,
        exception=output.exception,
        raised_at=output.failed_at,
        last_error=output.last_error,
        events=known.events,
        # An error is followed by the end of the program.
        doing=position[0] if position else known.position,
    )
