"""A rank of `mpiexec` that hands its place in MPI over to a worker of the launcher.

It is run as a file, by an isolated interpreter, with the path of the launcher's
socket. It sends what `mpiexec` gave it (variables, and the descriptor over which ranks
find each other), then waits until the launcher is done.
"""

import json
import os
import socket
import sys


def main() -> None:
    """Sends the environment and the descriptor, and waits for the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(sys.argv[1])
        # MPICH's ranks inherit a descriptor; others name a socket in a variable.
        descriptor = os.environ.get("PMI_FD")
        inherited = [] if descriptor is None else [int(descriptor)]
        message = json.dumps(dict(os.environ)).encode()
        socket.send_fds(line, [len(message).to_bytes(8, "big")], inherited)
        line.sendall(message)
        line.recv(1)


if __name__ == "__main__":
    main()
