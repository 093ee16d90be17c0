"""MPI: the processes that it started together."""

import contextlib
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.environment import mpi_rank
from keras_fastnet.cluster.gpus import mpi_process_gpus
from keras_fastnet.cluster.ports import port_socket, reserve_any_port
from keras_fastnet.errors import ClusterError
from keras_fastnet.text import listed

_PRESENT = 1
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 2.0


def mpi4py_is_installed() -> bool:
    """Returns whether mpi4py can be found, without loading it."""
    return importlib.util.find_spec("mpi4py") is not None


class MpiWorld:
    """All ranks of `MPI.COMM_WORLD`.

    Creating it is itself a collective operation. Afterwards an exception that ends this
    process ends all ranks.

    Args:
        start_timeout: Seconds within which all ranks must have started. Defaults to
            `300.0`.

    Attributes:
        communicator: A communicator of all ranks, which nothing else uses.
        rank: This process's rank.
        size: The number of ranks.

    Raises:
        ClusterError: If mpi4py cannot be loaded, or uses another MPI library than the
            one that started this process, or a rank does not start in time.
    """

    def __init__(self, start_timeout: float = 300.0) -> None:
        # Of MPICH's `mpiexec`.
        if os.environ.get("MPI_LOCALNRANKS", "") == os.environ.get("PMI_SIZE"):
            # All are on this machine. Read by UCX, by which MPICH connects.
            os.environ.setdefault("UCX_NET_DEVICES", "lo")
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ClusterError(
                "Training over MPI needs mpi4py and an MPI library that it finds. "
                f"Received: {error}. `pip install mpi4py mpich` installs both; with "
                "the MPI of your cluster, `pip install mpi4py` alone."
            ) from error
        self._mpi = MPI
        self.rank: int = MPI.COMM_WORLD.rank
        self.size: int = MPI.COMM_WORLD.size
        stated = mpi_rank(os.environ)
        if stated is not None and stated.size not in (0, self.size):
            library = MPI.Get_library_version().splitlines()[0]
            raise ClusterError(
                "mpi4py must use the MPI library that started this process. Received: "
                f"{stated.size} processes were started, and mpi4py knows of "
                f"{self.size} ({library}). Start them with the `mpiexec` of that "
                "library, install mpi4py for the other, or do without MPI: TF_CONFIG "
                'and `transport="tensorflow"`.'
            )
        self._call_roll(start_timeout)
        self.communicator = MPI.COMM_WORLD.Dup()
        self._previous_hook = sys.excepthook
        sys.excepthook = self._abort

    def _call_roll(self, seconds: float) -> None:
        """Waits for a message of each rank; a collective could not name a missing one.

        Args:
            seconds: How long to wait.
        """
        world = self._mpi.COMM_WORLD
        missing = set(range(self.size)) - {self.rank}
        sent = [world.Isend(bytearray(1), rank, _PRESENT) for rank in missing]
        status = self._mpi.Status()
        end = time.monotonic() + seconds
        while missing and time.monotonic() < end:
            if world.Iprobe(tag=_PRESENT, status=status):
                world.Recv(bytearray(1), status.Get_source(), _PRESENT)
                missing.remove(status.Get_source())
            else:
                time.sleep(_LOOK_SECONDS)
        if missing:
            raise ClusterError(
                f"All {self.size} ranks must start within {seconds:g} s of one "
                f"another. Received: rank {self.rank} has no message of "
                f"{listed('rank', sorted(missing))}. Look at the output there. A "
                "larger `start_timeout` allows more time."
            )
        self._mpi.Request.Waitall(sent)

    def cluster(self) -> Cluster:
        """Returns the addresses for TensorFlow's servers. Collective."""
        with self._host() as near:
            one_host = near.size == self.size
        host = "127.0.0.1" if one_host else self._mpi.Get_processor_name()
        # Held until TensorFlow listens.
        self._port = port_socket()
        address = f"{host}:{reserve_any_port(self._port)}"
        addresses = self.communicator.allgather(address)
        return Cluster(addresses=tuple(addresses), rank=self.rank)

    def own_gpus(self, count: int) -> slice:
        """Returns which of the visible GPUs this process uses. Collective.

        Args:
            count: The number of GPUs that it sees.

        Raises:
            ClusterError: If the processes of this host cannot divide them.
        """
        with self._host() as near:
            own = os.environ.get("CUDA_VISIBLE_DEVICES"), count
            return mpi_process_gpus(near.allgather(own), near.rank)

    @contextlib.contextmanager
    def _host(self) -> Iterator[Any]:
        """Yields a communicator of this host's ranks. Collective."""
        near = self.communicator.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            yield near
        finally:
            near.Free()

    def print_processes(self) -> None:
        """Prints on rank 0 the process and host of every rank. Collective.

        If the system kills a process, `mpiexec` reports only its process number.
        """
        process = f"{self.rank} (process {os.getpid()} on {socket.gethostname()})"
        processes = self.communicator.allgather(process)
        if self.rank == 0:
            print(f"keras_fastnet: MPI ranks {', '.join(processes)}", flush=True)

    def _abort(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        self._previous_hook(kind, error, traceback)
        print(
            f"keras_fastnet: rank {self.rank} on {socket.gethostname()} failed, ending "
            "the others",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        if isinstance(error, ClusterError):
            # The other ranks that wait for the same one report it as well.
            time.sleep(_PATIENCE_SECONDS)
        # Otherwise MPI waits for the other ranks, and they wait for this one.
        self.communicator.Abort(1)
