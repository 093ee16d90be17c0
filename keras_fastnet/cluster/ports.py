"""Reserves TCP ports of this machine until a worker's server listens on them."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keras_fastnet.errors import UsageError

_HIGHEST_PORT = 65535
_TIME_WAIT = "06"


@contextmanager
def reserved_ports(workers: int, base: int | None = None) -> Iterator[list[int]]:
    """Reserves a port for each worker until the context ends.

    Args:
        workers: The number of ports.
        base: Asks for ports `base` to `base + workers - 1`. Defaults to `None`,
            any free ports.

    Yields:
        The ports, by rank.

    Raises:
        UsageError: If a port is out of range or in use.
    """
    if base is not None and not 1 <= base <= _HIGHEST_PORT - workers + 1:
        raise UsageError(
            f"--port BASE must be such that BASE to BASE + {workers - 1} lie in 1 to "
            f"{_HIGHEST_PORT}. Received: {base}. Choose another, or leave --port out."
        )
    with ExitStack() as stack:
        sockets = [stack.enter_context(port_socket()) for _ in range(workers)]
        if base is None:
            yield [reserve_any_port(each) for each in sockets]
        else:
            ports = range(base, base + workers)
            yield [_reserve(*pair) for pair in zip(sockets, ports, strict=True)]


def port_socket() -> socket.socket:
    """Returns an unbound socket of the kind that TensorFlow's server binds.

    The server listens on all interfaces, with IPv6 where the machine has it. A port
    that is free on 127.0.0.1 may be taken for the server: an outgoing connection from
    another address of this machine may use it.
    """
    dual = socket.has_dualstack_ipv6()
    unbound = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    if dual:
        unbound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return unbound


def reserve_any_port(unbound: socket.socket) -> int:
    """Binds a socket of `port_socket` to a free port and returns the port's number.

    The socket does not listen. Linux gives its port to no process that asks for any
    free port, but lets a server with SO_REUSEADDR, which gRPC sets, listen on it. So
    no other program can take the port before TensorFlow listens on it.
    """
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    unbound.bind(("", 0))
    return unbound.getsockname()[1]


def _reserve(unbound: socket.socket, port: int) -> int:
    # Without SO_REUSEADDR the bind also fails where another launcher has reserved the
    # port and nothing listens on it yet. The worker's server needs the option later.
    try:
        try:
            unbound.bind(("", port))
        except OSError as error:
            # Closed connections of an earlier run may linger for a minute. The
            # worker's server can listen in spite of them.
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
    """Returns whether closed connections linger on `port` (TCP's TIME_WAIT)."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for row in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            if state == _TIME_WAIT and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
