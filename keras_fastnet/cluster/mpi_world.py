"""The processes that `mpiexec`, `mpirun` or `srun` started together."""

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.gpus import share_of_gpus
from keras_fastnet.cluster.mpi_environment import size_in
from keras_fastnet.cluster.ports import port_socket, reserve_any_port
from keras_fastnet.errors import ClusterError

_LEFT = 1
_PATIENCE_SECONDS = 2.0


class MpiWorld:
    """All ranks of `MPI.COMM_WORLD`.

    Making it is itself collective. From then on an exception that ends this process
    ends all ranks, and those who wait in vain for one that has left the program learn
    that it has.

    Attributes:
        communicator: A communicator of all ranks, for nobody else.
        rank: This process's.
        size: Their number.

    Raises:
        ClusterError: mpi4py cannot be loaded, or does not belong to the MPI that
            started this process.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ClusterError(
                "Training over MPI needs mpi4py and an MPI library that it finds. "
                f"Received: {error}. `pip install 'keras-fastnet[mpi]'` installs "
                "both; with the MPI of your cluster, `pip install mpi4py` alone."
            ) from error
        self._mpi = MPI
        self.communicator = MPI.COMM_WORLD.Dup()
        self.rank: int = self.communicator.rank
        self.size: int = self.communicator.size
        expected = size_in(os.environ)
        if expected not in (None, self.size):
            raise ClusterError(
                "mpi4py must use the MPI library that started this process. Received: "
                f"{expected} processes were started, and mpi4py knows of {self.size} "
                f"({MPI.Get_library_version().splitlines()[0]}). Start them with the "
                "`mpiexec` of that library, install mpi4py for the other, or do "
                'without MPI: TF_CONFIG and `transport="tensorflow"`.'
            )
        self._notices = MPI.COMM_WORLD.Dup()
        # Kept, as nobody waits until it has been sent.
        self._notice: Any = bytearray(1)
        self._left_since: float | None = None
        self._own_hook = sys.excepthook
        sys.excepthook = self._fail
        atexit.register(self._leave)

    def cluster(self) -> Cluster:
        """Returns addresses at which TensorFlow's servers can meet. Collective."""
        with self._host() as near:
            alone = near.size == self.size
        host = "127.0.0.1" if alone else self._mpi.Get_processor_name()
        # Nobody else gets the port until TensorFlow listens.
        self._port = port_socket()
        address = f"{host}:{reserve_any_port(self._port)}"
        addresses = tuple(self.communicator.allgather(address))
        return Cluster(addresses=addresses, rank=self.rank)

    def own_gpus(self, count: int) -> slice:
        """Returns which of the visible GPUs are this process's. Collective.

        Args:
            count: How many it sees.

        Raises:
            ClusterError: The processes of this host cannot divide them.
        """
        with self._host() as near:
            seen = near.allgather((os.environ.get("CUDA_VISIBLE_DEVICES"), count))
            return share_of_gpus(seen, near.rank)

    @contextlib.contextmanager
    def _host(self) -> Iterator[Any]:
        """Lends a communicator of this host's ranks. Collective."""
        near = self.communicator.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            yield near
        finally:
            near.Free()

    def announce(self) -> None:
        """Says on rank 0 which process is which rank. Collective.

        Where the system ends a process, `mpiexec` tells only its number.
        """
        place = f"{self.rank} (process {os.getpid()} on {socket.gethostname()})"
        places = self.communicator.gather(place)
        if places is not None:
            print(f"keras_fastnet: MPI ranks {', '.join(places)}", flush=True)

    def look_around(self) -> None:
        """Raises where a rank has left the program.

        Raises:
            RuntimeError: One has.
        """
        status = self._mpi.Status()
        if not self._notices.Iprobe(tag=_LEFT, status=status):
            return
        # What it sent before may still be on the way: all leave at the end.
        now = time.monotonic()
        self._left_since = self._left_since or now
        if now - self._left_since > _PATIENCE_SECONDS:
            raise RuntimeError(
                "Ranks train together: none may leave while another still waits for "
                f"it. Received: rank {status.Get_source()} has left the program. Look "
                "at its output, and for what depends on the rank in the script."
            )

    def _leave(self) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self._notices.Isend(self._notice, dest=rank, tag=_LEFT).Free()

    def _fail(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        self._own_hook(kind, error, traceback)
        print(
            f"keras_fastnet: rank {self.rank} on {socket.gethostname()} failed, ending "
            "the others",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        # MPI would otherwise wait for the others, and they for this rank.
        self.communicator.Abort(1)
