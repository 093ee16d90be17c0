"""Keeps the servers of a cluster on one machine to its loopback interface.

TensorFlow's server listens on every address and cannot be told otherwise. But Linux
(since 5.7, without privileges) binds a listening socket to a network interface, and
the server's socket is one of this process. Until the server has started, sockets on the
same port of all other interfaces take their connections, which are never read.
"""

import contextlib
import logging
import os
import socket
import stat
from collections.abc import Iterator

from keras_fastnet.cluster.cluster_spec import Cluster, is_loopback, split_address
from keras_fastnet.cluster.ports import (
    LOOPBACK,
    keep_to_interface,
    port_socket,
)

_LOG = logging.getLogger(__name__)

# With it the server shares its port with other sockets of this process.
_SHARE_PORT = "TF_GRPC_REUSE_PORT"


@contextlib.contextmanager
def kept_to_loopback(cluster: Cluster) -> Iterator[None]:
    """A context in which TensorFlow's server starts, for this machine alone.

    Has no effect if an address of the cluster is no loopback address. Logs a warning if
    the system does not allow it.

    Args:
        cluster: The cluster.
    """
    if not is_loopback(cluster):
        yield
        return
    port = split_address(cluster.address)[1]
    previous = os.environ.get(_SHARE_PORT)
    with contextlib.ExitStack() as stack:
        guards = []
        for _, interface in socket.if_nameindex():
            if interface != LOOPBACK:
                with contextlib.suppress(OSError):
                    guards.append(stack.enter_context(_guard(interface, port)))
        if guards:
            os.environ[_SHARE_PORT] = "1"
        try:
            yield
        finally:
            os.environ.pop(_SHARE_PORT, None)
            if previous is not None:
                os.environ[_SHARE_PORT] = previous
        try:
            _keep_server_to_loopback(port, guards)
        except OSError as error:
            if cluster.rank == 0:
                _LOG.warning(
                    "TensorFlow's servers should listen on the loopback interface "
                    "only. Received: %s. They listen on every address of this "
                    "machine: use a trusted network.",
                    error,
                )


@contextlib.contextmanager
def _guard(interface: str, port: int) -> Iterator[socket.socket]:
    """A socket that takes all connections to a port of one interface."""
    with port_socket() as guard:
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keep_to_interface(guard, interface)
        guard.bind(("", port))
        guard.listen(0)
        yield guard


def _keep_server_to_loopback(port: int, guards: list[socket.socket]) -> None:
    own = {os.fstat(guard.fileno()).st_ino for guard in guards}
    servers = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in own:
                continue
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # Closed since the folder was read.
        with copy:
            if _listens_on(copy, port):
                keep_to_interface(copy, LOOPBACK)
                servers += 1
    if not servers:
        raise OSError(f"no socket of this process listens on port {port}")


def _listens_on(opened: socket.socket, port: int) -> bool:
    return (
        opened.family in (socket.AF_INET, socket.AF_INET6)
        and opened.getsockname()[1] == port
        and bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )
