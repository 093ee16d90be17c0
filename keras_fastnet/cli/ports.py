"""Ports of 127.0.0.1 that stay reserved for the workers of one launch."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keras_fastnet.cli.cluster_environment import HOST
from keras_fastnet.cli.errors import UsageError

_HIGHEST_PORT = 65535
_TIME_WAIT = "06"


@contextmanager
def reserved_ports(workers: int, base: int | None = None) -> Iterator[list[int]]:
    """Reserves a port for each worker until the context ends.

    Each port is held by a bound socket that does not listen. Linux gives such a
    port to nobody who asks for any free port, yet lets a server with
    SO_REUSEADDR, which gRPC sets, listen on it. So no other program can take the
    port between its choice and the moment when TensorFlow listens.

    Args:
        workers: The number of ports.
        base: Asks for ports `base` to `base + workers - 1`. Defaults to `None`,
            any free ports.

    Yields:
        The ports, by rank.
    """
    if base is not None and not 1 <= base <= _HIGHEST_PORT - workers + 1:
        raise UsageError(
            f"--port BASE must be such that BASE to BASE + {workers - 1} lie in 1 to "
            f"{_HIGHEST_PORT}. Received: {base}. Choose another, or leave --port out."
        )
    with ExitStack() as stack:
        sockets = [stack.enter_context(_holder()) for _ in range(workers)]
        for rank, holder in enumerate(sockets):
            if base is None:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind((HOST, 0))
            else:
                _bind_exactly(holder, base + rank)
        yield [holder.getsockname()[1] for holder in sockets]


def _holder() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _bind_exactly(holder: socket.socket, port: int) -> None:
    # Without SO_REUSEADDR the bind also fails where another launcher holds the
    # port but nobody listens yet. The option comes after, for the worker's sake.
    try:
        try:
            holder.bind((HOST, port))
        except OSError as error:
            # Connections of an earlier run may linger for a minute; they are no
            # reason to refuse.
            if error.errno != errno.EADDRINUSE or not _lingers(port):
                raise
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port))
    except OSError as error:
        raise UsageError(
            f"The ports of the workers must be free. Received: port {port}, which "
            f"cannot be had ({error.strerror}). Choose another --port, or leave it "
            "out to let fastnet find free ports."
        ) from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _lingers(port: int) -> bool:
    """Tells whether closed connections linger on `port` (TCP's TIME_WAIT)."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for row in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            if state == _TIME_WAIT and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
