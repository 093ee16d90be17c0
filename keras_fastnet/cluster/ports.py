"""Ports of workers: keeping them free, and listening on them."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

from keras_fastnet.cluster.cluster_spec import Cluster, is_loopback, split_address
from keras_fastnet.errors import ClusterError

# An earlier process may need a moment to release the port.
BUSY_SECONDS = 2.0
_RETRY_SECONDS = 0.2
LOOPBACK = "lo"


@contextlib.contextmanager
def reserved_ports(workers: int) -> Iterator[list[int]]:
    """Reserves a free port of this machine for each worker until the context ends.

    Args:
        workers: The number of ports.

    Yields:
        The ports, by rank.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(port_socket()) for _ in range(workers)]
        yield [reserve_any_port(each) for each in sockets]


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
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise ClusterError(
                    f"Rank {cluster.rank} must be able to listen on its own port. "
                    f"Received: {cluster.address}, {os.strerror(error.errno or 0)}. "
                    "Choose another port in TF_CONFIG on all workers, or end the "
                    "process that has it "
                    f"(`ss -ltnp 'sport = :{port}'` shows it)."
                ) from error
        time.sleep(_RETRY_SECONDS)
    if is_loopback(cluster):
        # Where the system allows it; otherwise strangers are ignored.
        with contextlib.suppress(OSError):
            keep_to_interface(listener, LOOPBACK)
    return listener


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens on `port` as TensorFlow's server would.

    Args:
        port: The port.
    """
    # As gRPC does: with SO_REUSEADDR, which allows a launcher to hold the port.
    listener = port_socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


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
