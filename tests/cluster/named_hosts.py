"""Hosts with their own names, for schedulers and their jobs."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.network import Network

# Sets the host name and /etc/hosts for this command only.
_ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class NamedHosts:
    """Hosts of a `Network` that resolve each other's names.

    Args:
        names: Each host's name, and after it other names, separated by spaces.
        folder: Where their list of names is written.

    Raises:
        OSError: If the machine does not allow it; the message says what is missing.
    """

    def __init__(self, names: Sequence[str], folder: Path):
        self.names = [name.split()[-1] for name in names]
        self.network = Network(len(names), megabits=10_000)
        self._file = folder / "hosts"
        lines = [f"{self.network.address(i)} {name}" for i, name in enumerate(names)]
        self._file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def wrapper(self, host: int) -> list[str]:
        """Returns the words that make a command run on the host.

        Args:
            host: The host.
        """
        return [
            *self.network.wrapper(host),
            *("unshare", "--uts", "--mount", "sh", "-c", _ENTER, "sh"),
            *(self.names[host], str(self._file)),
        ]

    def start(
        self,
        host: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> subprocess.Popen:
        """Starts a command on a host, in a new session.

        Args:
            host: The host.
            command: The command.
            environment: All its variables.
            log: Where its output goes.
        """
        with log.open("wb") as file:
            return subprocess.Popen(
                [*self.wrapper(host), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def remove(self) -> None:
        """Removes the hosts."""
        self.network.remove()
