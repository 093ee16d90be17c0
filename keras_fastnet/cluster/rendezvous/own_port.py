"""A worker's own port."""

import errno
import os
import socket
import time

from keras_fastnet.cluster.cluster_spec import Cluster, split_address
from keras_fastnet.cluster.rendezvous import limits
from keras_fastnet.errors import ClusterError


def listen(cluster: Cluster) -> socket.socket:
    """Listens where this worker's TensorFlow server will.

    Raises:
        ClusterError: The port is forbidden, or somebody keeps it.
    """
    _, port = split_address(cluster.address)
    end = time.monotonic() + limits.PORT_SECONDS
    while True:
        try:
            return bound(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < end:
                time.sleep(limits.RETRY_SECONDS)
                continue
            raise ClusterError(
                f"Rank {cluster.rank} must be able to listen on its own port. "
                f"Received: {cluster.address}, {os.strerror(error.errno or 0)}. "
                "Choose another port on all workers (in TF_CONFIG; FASTNET_PORT under "
                "Slurm and Kubernetes), or end the process "
                f"that has it (`ss -ltnp 'sport = :{port}'` shows it)."
            ) from error


def bound(port: int) -> socket.socket:
    """Returns a socket that listens on `port` as TensorFlow's server would."""
    # As gRPC does: on all interfaces, IPv6 too where there is any, and with
    # SO_REUSEADDR, which also lets a launcher keep the port reserved.
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        backlog=socket.SOMAXCONN,
        dualstack_ipv6=dual,
    )
