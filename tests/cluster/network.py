"""Hosts on one machine: network namespaces on a bridge, with rate-limited links."""

import itertools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

# Every network has its own bridge, so all of them can use the subnet at once.
_SUBNET = "10.77.0"
# Below the ports that Linux gives to outgoing connections.
_FIRST_PORT = 20_000

# Deletes what it made when its input ends, which also a killed owner brings about.
_KEEPER = """
trap 'for name; do ip netns delete "$name" 2>/dev/null; done' EXIT
for name; do ip netns add "$name" || exit 1; done
echo made
read -r _
"""


class Network:
    """Hosts that reach each other through a switch, each over its own link.

    Nothing of it is in the machine's own network: the switch is a namespace too. The
    hosts' clocks, names and disks are the machine's.

    Args:
        hosts: Number of hosts.
        megabits: What each link carries in a second, in each direction.

    Attributes:
        name: Begins the names of its namespaces: host r is `NAME-hostR`.

    Raises:
        OSError: If the machine does not allow it; the message says what is missing.
    """

    def __init__(self, hosts: int, megabits: int):
        self.size = hosts
        self.megabits = megabits
        self._ports = itertools.count(_FIRST_PORT)
        # Others may build networks at the same time, also from other containers,
        # whose process numbers repeat ours.
        self.name = f"fastnet-{os.getpid()}-{secrets.token_hex(4)}"
        self._keeper = self._start_keeper()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def address(self, host: int) -> str:
        """Returns the host's IP address."""
        return f"{_SUBNET}.{host + 1}"

    def places(self, hosts: Sequence[int]) -> dict[str, list]:
        """Returns where the workers of a `WorkerPool` run, each time on other ports.

        Args:
            hosts: The host of each worker, by rank.

        Returns:
            Arguments for `WorkerPool`.
        """
        return {
            "addresses": [f"{self.address(h)}:{next(self._ports)}" for h in hosts],
            "wrappers": [self.wrapper(h) for h in hosts],
        }

    def wrapper(self, host: int) -> list[str]:
        """Returns the prefix that runs a command on the host."""
        return ["ip", "netns", "exec", self._host(host)]

    def sent_bytes(self) -> list[int]:
        """Returns what each host has sent over its link so far."""
        return [
            int(
                _command(
                    *self.wrapper(host),
                    "cat",
                    "/sys/class/net/uplink/statistics/tx_bytes",
                )
            )
            for host in range(self.size)
        ]

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

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"

    def _host(self, host: int) -> str:
        return f"{self.name}-host{host}"

    def _start_keeper(self) -> subprocess.Popen:
        _check_machine()
        names = [self._switch, *(self._host(host) for host in range(self.size))]
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
        for host in range(self.size):
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
        limit = f"tbf rate {self.megabits}mbit burst 64kb latency 100ms"
        _command(
            *["tc", "-n", namespace, "qdisc", "add", "dev", device, "root"],
            *limit.split(),
        )


def _check_machine() -> None:
    if sys.platform != "linux":
        raise OSError("network namespaces need Linux")
    if os.geteuid() != 0:
        raise OSError("network namespaces need root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise OSError(f"`{tool}` is missing: install iproute2")


def _command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout
