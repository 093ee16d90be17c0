"""Hosts on one machine: network namespaces on a bridge, with rate-limited links."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Every network has its own bridge, so all of them can use the subnet at once.
_SUBNET = "10.77.0"

# Deletes what it made when its input ends, which also a killed owner brings about.
_KEEPER = """
trap 'for name; do ip netns delete "$name" 2>/dev/null; done' EXIT
for name; do ip netns add "$name" || exit 1; done
echo made
read -r _
"""
# Sets the host name and /etc/hosts for this command only.
_ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class Network:
    """Hosts that reach each other through a switch, each over its own link.

    Nothing of it is in the machine's own network: the switch is a namespace too. The
    hosts' clocks and disks are the machine's.

    Args:
        hosts: Number of hosts.
        megabits: What each link carries in a second, in each direction.

    Raises:
        OSError: If the machine does not allow it; the message says what is missing.
    """

    def __init__(self, hosts: int, megabits: int):
        self._size = hosts
        self._megabits = megabits
        # Others may build networks at the same time, also from other containers,
        # whose process numbers repeat ours.
        self._name = f"fastnet-{os.getpid()}-{secrets.token_hex(4)}"
        self._switch = f"{self._name}-switch"
        self._keeper = self._start_keeper()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def address(self, host: int) -> str:
        """Returns the host's IP address."""
        return f"{_SUBNET}.{host + 1}"

    def wrapper(self, host: int) -> list[str]:
        """Returns the prefix that runs a command on the host."""
        return ["ip", "netns", "exec", self._host(host)]

    def cut(self, host: int) -> None:
        """Takes the host's link out of the switch's side, as if it were unplugged."""
        _command("ip", "-n", self._switch, "link", "set", "dev", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Puts the link back."""
        _command("ip", "-n", self._switch, "link", "set", "dev", f"port{host}", "up")

    def remove(self) -> None:
        """Removes the network. Processes that still run there keep running."""
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def _host(self, host: int) -> str:
        return f"{self._name}-host{host}"

    def _start_keeper(self) -> subprocess.Popen:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise OSError("network namespaces need Linux and root")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise OSError(f"`{tool}` is missing: install iproute2")
        names = [self._switch, *(self._host(host) for host in range(self._size))]
        with tempfile.TemporaryFile("w+") as errors:
            keeper = subprocess.Popen(
                ["sh", "-c", _KEEPER, "keeper", *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Ctrl-C is for the owner; the keeper cleans up after it.
                start_new_session=True,
            )
            if keeper.stdout.readline() != "made\n":
                keeper.communicate()
                errors.seek(0)
                raise OSError(f"network namespaces are not allowed: {errors.read()}")
        return keeper

    def _build(self) -> None:
        switch = ["ip", "-n", self._switch]
        _command(*switch, "link", "add", "name", "bridge", "type", "bridge")
        _command(*switch, "link", "set", "dev", "bridge", "up")
        for host in range(self._size):
            inside = ["ip", "-n", self._host(host)]
            port = f"port{host}"
            ends = ["name", "uplink", "type", "veth", "peer", "name", port]
            _command(*inside, "link", "add", *ends, "netns", self._switch)
            _command(*switch, "link", "set", "dev", port, "master", "bridge", "up")
            _command(*inside, "link", "set", "dev", "lo", "up")
            _command(*inside, "link", "set", "dev", "uplink", "up")
            _command(
                *inside, "address", "add", f"{self.address(host)}/24", "dev", "uplink"
            )
            self._limit(self._host(host), "uplink")
            self._limit(self._switch, port)

    def _limit(self, namespace: str, device: str) -> None:
        # The bucket holds the largest packet that a veth hands on in one piece.
        limit = f"tbf rate {self._megabits}mbit burst 64kb latency 100ms"
        _command(
            *["tc", "-n", namespace, "qdisc", "add", "dev", device, "root"],
            *limit.split(),
        )


class NamedHosts(Network):
    """Hosts that resolve each other's names, for schedulers and their jobs.

    Args:
        names: Each host's name, and after it other names, separated by spaces.
        folder: Where their list of names is written.
    """

    def __init__(self, names: Sequence[str], folder: Path):
        super().__init__(len(names), megabits=10_000)
        self._names = [name.split()[-1] for name in names]
        self._file = folder / "hosts"
        lines = [f"{self.address(i)} {name}" for i, name in enumerate(names)]
        self._file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def wrapper(self, host: int) -> list[str]:
        """Returns the prefix that runs a command on the host."""
        return [
            *super().wrapper(host),
            *("unshare", "--uts", "--mount", "sh", "-c", _ENTER, "sh"),
            *(self._names[host], str(self._file)),
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


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
