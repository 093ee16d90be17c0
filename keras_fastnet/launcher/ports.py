"""Ports of this machine that stay reserved for the workers of one launch."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keras_fastnet.cluster.held_port import hold_any_port, port_holder
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
    """
    if base is not None and not 1 <= base <= _HIGHEST_PORT - workers + 1:
        raise UsageError(
            f"--port BASE must be such that BASE to BASE + {workers - 1} lie in 1 to "
            f"{_HIGHEST_PORT}. Received: {base}. Choose another, or leave --port out."
        )
    with ExitStack() as stack:
        holders = [stack.enter_context(port_holder()) for _ in range(workers)]
        if base is None:
            yield [hold_any_port(holder) for holder in holders]
        else:
            ports = range(base, base + workers)
            yield [_hold(*pair) for pair in zip(holders, ports, strict=True)]


def _hold(holder: socket.socket, port: int) -> int:
    # Without SO_REUSEADDR the bind also fails where another launcher holds the
    # port but nobody listens yet. The option comes after, for the worker's sake.
    try:
        try:
            holder.bind(("", port))
        except OSError as error:
            # Connections of an earlier run may linger for a minute; they are no
            # reason to refuse.
            if error.errno != errno.EADDRINUSE or not _lingers(port):
                raise
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", port))
    except OSError as error:
        raise UsageError(
            f"The ports of the workers must be free. Received: port {port}, which "
            f"cannot be had ({error.strerror}). Choose another --port, or leave it "
            "out to let fastnet find free ports."
        ) from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return port


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
