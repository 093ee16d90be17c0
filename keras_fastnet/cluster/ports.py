"""Ports of workers: choosing them, keeping them free, and listening on them."""

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from keras_fastnet.cluster.cluster_spec import Cluster, is_loopback, split_address
from keras_fastnet.cluster.variables import integer_variable
from keras_fastnet.errors import ClusterError, UsageError

FIRST_PORT = 20_000
"""The lowest port. Linux uses no port up to 32,767 for outgoing connections."""
# The number of slots is prime; a slot has as many ports as most nodes have tasks.
_SLOTS, _WIDTH = 199, 64
# About half the slots, so that step 1 of a job is far from step 0 of the next job.
_STEP = 100
_HIGHEST_PORT = 65_535
_TIME_WAIT = "06"  # in /proc/net/tcp
# An earlier process may need a moment to release the port.
BUSY_SECONDS = 2.0
_RETRY_SECONDS = 0.2
LOOPBACK = "lo"


def slurm_ports(environment: Mapping[str, str], tasks: int) -> list[int]:
    """Returns the ports of a node's tasks, the same on all nodes of a Slurm step.

    `FASTNET_PORT` is the first port if it is set. Otherwise the ports are those that
    Slurm has reserved for the step (if it is configured with `MpiParams=ports=`), or
    are computed from the numbers of job and step: 199 consecutive jobs have different
    ports.

    Args:
        environment: The environment variables of a task.
        tasks: The number of tasks of the fullest node.

    Raises:
        ClusterError: If `FASTNET_PORT` is not a port, or too high for all tasks.
    """
    first = integer_variable(
        environment, "FASTNET_PORT", 1, _HIGHEST_PORT + 1 - tasks, FIRST_PORT
    )
    if first is None:
        reserved = _reserved_by_slurm(environment.get("SLURM_STEP_RESV_PORTS", ""))
        if len(reserved) >= tasks:
            return reserved[:tasks]
        job, step = (
            int(environment.get(name, "0"))
            for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
        )
        first = FIRST_PORT + (job + _STEP * step) % _SLOTS * _WIDTH
    return list(range(first, first + tasks))


def _reserved_by_slurm(text: str) -> list[int]:
    ports: list[int] = []
    for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", text):
        ports += range(int(first), int(last or first) + 1)
    return ports


@contextlib.contextmanager
def reserved_ports(workers: int, base: int | None = None) -> Iterator[list[int]]:
    """Reserves a port of this machine for each worker until the context ends.

    Args:
        workers: The number of ports.
        base: Asks for ports `base` to `base + workers - 1`. Defaults to `None`,
            any free ports.

    Yields:
        The ports, by rank.

    Raises:
        UsageError: If a port is out of range or not free.
    """
    if base is not None and not 1 <= base <= _HIGHEST_PORT - workers + 1:
        raise UsageError(
            f"--port BASE must be such that BASE to BASE + {workers - 1} lie in 1 to "
            f"{_HIGHEST_PORT}. Received: {base}. Choose another, or leave --port out."
        )
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(port_socket()) for _ in range(workers)]
        if base is None:
            yield [reserve_any_port(each) for each in sockets]
        else:
            ports = range(base, base + workers)
            yield [_reserve(*pair) for pair in zip(sockets, ports, strict=True)]


def port_socket() -> socket.socket:
    """Returns an unbound socket of the same family as TensorFlow's server socket.

    The server listens on all interfaces, with IPv6 if the machine has it. A port that
    is free on 127.0.0.1 may still be in use: an outgoing connection from another
    address of this machine may have it.
    """
    dual = socket.has_dualstack_ipv6()
    unbound = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    if dual:
        unbound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return unbound


def reserve_any_port(unbound: socket.socket) -> int:
    """Binds `unbound` to a free port, which no other program gets, and returns it.

    The socket does not listen. Linux never hands out a bound port as "any free port",
    but allows a server with SO_REUSEADDR, which gRPC sets, to listen on it. So no
    other program can take the port before TensorFlow listens.

    Args:
        unbound: A socket from `port_socket`.
    """
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    unbound.bind(("", 0))
    return unbound.getsockname()[1]


def _reserve(unbound: socket.socket, port: int) -> int:
    # Without SO_REUSEADDR the bind also fails if another launcher holds the port and
    # nothing listens on it. The option is set afterwards: the worker needs it.
    try:
        try:
            unbound.bind(("", port))
        except OSError as error:
            # Closed connections of an earlier run keep the port for a minute, but do
            # not prevent a server from listening on it.
            if error.errno != errno.EADDRINUSE or not _has_time_wait(port):
                raise
            unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            unbound.bind(("", port))
    except OSError as error:
        raise UsageError(
            f"The ports of the workers must be free. Received: port {port}, which "
            f"cannot be bound ({error.strerror}). Choose another --port, or leave it "
            "out to let fastnet find free ports."
        ) from error
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return port


def _has_time_wait(port: int) -> bool:
    """Returns whether closed connections remain on `port` (TCP's TIME_WAIT)."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for row in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            if state == _TIME_WAIT and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def listen(cluster: Cluster) -> socket.socket:
    """Listens on this worker's own port, as its TensorFlow server will.

    Args:
        cluster: The cluster.

    Raises:
        ClusterError: If the port is forbidden, or remains in use for two seconds.
    """
    _, port = split_address(cluster.address)
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            listener = listening_socket(port)
            if is_loopback(cluster):
                # Where the system allows it; otherwise strangers are ignored.
                with contextlib.suppress(OSError):
                    keep_to_interface(listener, LOOPBACK)
            return listener
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < end:
                time.sleep(_RETRY_SECONDS)
                continue
            raise ClusterError(
                f"Rank {cluster.rank} must be able to listen on its own port. "
                f"Received: {cluster.address}, {os.strerror(error.errno or 0)}. "
                "Choose another port on all workers (in TF_CONFIG; FASTNET_PORT under "
                "Slurm and Kubernetes), or end the process "
                f"that has it (`ss -ltnp 'sport = :{port}'` shows it)."
            ) from error


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens on `port` as TensorFlow's server would.

    Args:
        port: The port.
    """
    # As gRPC does: on all interfaces, with IPv6 if the machine has it, and with
    # SO_REUSEADDR, which allows a launcher to hold the port.
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        backlog=socket.SOMAXCONN,
        dualstack_ipv6=dual,
    )


def keep_to_interface(opened: socket.socket, interface: str) -> None:
    """Restricts a socket to one network interface.

    Args:
        opened: The socket.
        interface: The name of the interface, such as `LOOPBACK`.

    Raises:
        OSError: If the system does not allow it.
    """
    opened.setsockopt(
        socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0"
    )
