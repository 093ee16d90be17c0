"""Hosts on one machine: network namespaces on a bridge, with rate-limited links."""

import os
import secrets
import shutil
import subprocess
import sys
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
    hosts' clocks and disks are the machine's. An `OSError` says what is missing where
    the machine does not allow it. `megabits` is what each link carries in a second.
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
        return f"{_SUBNET}.{host + 1}"

    def wrapper(self, host: int) -> list[str]:
        """Returns the prefix that runs a command on the host."""
        return ["ip", "netns", "exec", self._host(host)]

    def cut(self, host: int) -> None:
        """Takes the host's link out of the switch's side, as if it were unplugged."""
        self._set_link(host, "down")

    def mend(self, host: int) -> None:
        self._set_link(host, "up")

    def _set_link(self, host: int, state: str) -> None:
        _command(f"ip -n {self._switch} link set dev port{host} {state}")

    def remove(self) -> None:
        """Removes the network. Processes that still run there keep running."""
        # It ends at the end of its input.
        self._keeper.communicate()

    def _host(self, host: int) -> str:
        return f"{self._name}-host{host}"

    def _start_keeper(self) -> subprocess.Popen:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise OSError("network namespaces need Linux and root")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise OSError(f"`{tool}` is missing: install iproute2")
        names = [self._switch, *(self._host(host) for host in range(self._size))]
        keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "keeper", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the owner; the keeper cleans up after it.
            start_new_session=True,
        )
        if keeper.stdout.readline() != "made\n":
            _, errors = keeper.communicate()
            raise OSError(f"network namespaces are not allowed: {errors}")
        return keeper

    def _build(self) -> None:
        switch = f"ip -n {self._switch}"
        _command(f"{switch} link add name bridge type bridge")
        _command(f"{switch} link set dev bridge up")
        for host in range(self._size):
            inside, port = f"ip -n {self._host(host)}", f"port{host}"
            ends = f"name uplink type veth peer name {port} netns {self._switch}"
            _command(f"{inside} link add {ends}")
            _command(f"{switch} link set dev {port} master bridge up")
            _command(f"{inside} link set dev lo up")
            _command(f"{inside} link set dev uplink up")
            _command(f"{inside} address add {self.address(host)}/24 dev uplink")
            self._limit(self._host(host), "uplink")
            self._limit(self._switch, port)

    def _limit(self, namespace: str, device: str) -> None:
        # The bucket holds the largest packet that a veth hands on in one piece.
        limit = f"tbf rate {self._megabits}mbit burst 64kb latency 100ms"
        _command(f"tc -n {namespace} qdisc add dev {device} root {limit}")


class NamedHosts(Network):
    """Hosts that resolve each other's names, for schedulers and their jobs.

    Each of `names` may be several, separated by spaces: the last is the host's own.
    Their list is written in `folder`.
    """

    def __init__(self, names: Sequence[str], folder: Path):
        super().__init__(len(names), megabits=10_000)
        self._names = [name.split()[-1] for name in names]
        self._file = folder / "hosts"
        lines = [f"{self.address(i)} {name}" for i, name in enumerate(names)]
        self._file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def wrapper(self, host: int) -> list[str]:
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
        """Starts a command on a host, in a new session; its output goes to `log`."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [*self.wrapper(host), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _command(text: str) -> None:
    done = subprocess.run(text.split(), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{text}` failed: {done.stderr.strip()}")
