"""`run_on_hosts`, which starts a launcher on each of several machines over ssh."""

import contextlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.launcher import DEFAULT_GRACE_SECONDS
from keras_fastnet.launcher.output import Display
from keras_fastnet.launcher.python_command import check_command

DEFAULT_PORT = 29_400
"""The port of the launcher on the first host. That of torchrun, too."""
# The machines end together; a host that has failed is found after 20 s by the others.
_END_SECONDS = 30.0
# Exit codes of a launcher that has started nothing, of one that was killed, and of ssh
# itself: the other launchers would wait for it.
_AT_ONCE = (2, 128 + signal.SIGKILL, 255)
_STREAMS = ("stdout", "stderr")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Variables for TensorFlow, Keras and this package. Those that name a machine's devices
# or its cluster are not passed on.
_PASSED = re.compile(r"(TF|KERAS|FASTNET|OMP|NCCL|XLA)_")


class Host(NamedTuple):
    """A machine to start workers on.

    Attributes:
        name: What ssh is given, such as `a` or `user@a`.
        workers: The number of workers.
    """

    name: str
    workers: int

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2]


def run_on_hosts(
    hosts: Sequence[Host],
    command: Sequence[str],
    options: Mapping[str, Any],
    *,
    ssh: str = "ssh",
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Runs a Python program on several machines and waits until all have ended.

    The machines must have the working directory and the Python interpreter of this
    process at the same paths. Output of the workers comes here; a line of a launcher
    has its host's name in front.

    Args:
        hosts: The machines, by their rank.
        command: The words that follow `python`.
        options: Further arguments of `launcher.run`, the same on all machines. Without
            `rendezvous` it is the first host's name with `DEFAULT_PORT`.
        ssh: The command that runs a command on a host: `SSH HOST COMMAND`. Defaults
            to `"ssh"`.
        environment: The variables that are passed on if they are for TensorFlow,
            Keras or this package, and PYTHONPATH. Defaults to `os.environ`.
        stdout: Receives the workers' stdout. Defaults to `sys.stdout`.
        stderr: Receives everything else. Defaults to `sys.stderr`.

    Returns:
        0 if all workers succeed; otherwise the exit code of the first machine that
        failed, or 128 plus the number of the signal that this process got.

    Raises:
        UsageError: If there is no program to run, or ssh is not found.
    """
    environment = os.environ if environment is None else environment
    check_command(command)
    shared = dict(options)
    if len(hosts) > 1:
        shared["nnodes"] = len(hosts)
        shared.setdefault("rendezvous", f"{hosts[0].address}:{DEFAULT_PORT}")
    grace_seconds = options.get("grace_seconds", DEFAULT_GRACE_SECONDS)
    variables = {k: v for k, v in environment.items() if _PASSED.match(k)}
    display = Display(stdout or sys.stdout, stderr or sys.stderr)
    started: list[_Remote] = []
    try:
        for rank, host in enumerate(hosts):
            order = {
                "command": list(command),
                "variables": variables,
                "options": {
                    **shared,
                    "workers": host.workers,
                    "node_rank": rank,
                    **_files_of_machine(options, rank),
                },
            }
            words = [*shlex.split(ssh), host.name, _remote_command(environment)]
            started.append(_Remote(host, words, order))
        return _Watch(started, display, grace_seconds).run()
    except FileNotFoundError as error:
        raise UsageError(
            "--ssh must be a command that runs a command on a host, as `ssh` does. "
            f"Received: {ssh} ({error.strerror}). Install OpenSSH, or name another."
        ) from None
    finally:
        for remote in started:
            remote.close()


def _files_of_machine(options: Mapping[str, Any], rank: int) -> dict[str, str]:
    """Returns `log_dir` and `report` of a machine: a disk may be shared."""
    files = {}
    if options.get("log_dir") is not None:
        files["log_dir"] = str(Path(options["log_dir"]) / f"machine-{rank}")
    if options.get("report") is not None and rank:
        path = Path(options["report"])
        files["report"] = str(path.with_name(f"{path.stem}-{rank}{path.suffix}"))
    return files


def _remote_command(environment: Mapping[str, str]) -> str:
    """Returns the words for the shell of a host."""
    program = [sys.executable, "-m", "keras_fastnet.launcher.on_host"]
    if "PYTHONPATH" in environment:
        program = ["env", f"PYTHONPATH={environment['PYTHONPATH']}", *program]
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(program)}"


class _Remote:
    """The connection to a host: ssh, and the launcher at its other end."""

    def __init__(self, host: Host, words: Sequence[str], order: dict[str, Any]) -> None:
        self.host = host
        self.code: int | None = None
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is for this process. Without a terminal, ssh asks for nothing.
            start_new_session=True,
        )
        self.pipes: dict[str, IO[str]] = {
            name: getattr(self.process, name) for name in ("stdin", *_STREAMS)
        }
        # The token is not on a command line, which all users of a machine can see.
        self.tell(json.dumps(order))

    def tell(self, line: str) -> None:
        """Writes a line to the launcher's stdin."""
        # ssh may have ended.
        with contextlib.suppress(OSError):
            self.pipes["stdin"].write(f"{line}\n")
            self.pipes["stdin"].flush()

    def close(self) -> None:
        """Kills ssh. The launcher ends its workers when its stdin ends."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.pipes["stdin"].close()


class _Watch:
    """Shows what the launchers write, and ends them together."""

    def __init__(
        self, remotes: Sequence[_Remote], display: Display, grace_seconds: float
    ) -> None:
        self._remotes = remotes
        self._display = display
        self._patience = grace_seconds + _END_SECONDS
        self._news: queue.SimpleQueue[tuple[_Remote, str, str | None]] = (
            queue.SimpleQueue()
        )
        self._signal: int | None = None
        self._first: _Remote | None = None

    def run(self) -> int:
        """Returns the exit code when all have ended."""
        for remote in self._remotes:
            for stream in _STREAMS:
                threading.Thread(
                    target=self._read, args=(remote, stream), daemon=True
                ).start()
        in_main_thread = threading.current_thread() is threading.main_thread()
        previous = {}
        for number in _SIGNALS if in_main_thread else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, self._pass_on)
        try:
            self._wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._signal is not None:
            return 128 + self._signal
        return 0 if self._first is None else self._first.code or 0

    def _read(self, remote: _Remote, stream: str) -> None:
        for line in remote.pipes[stream]:
            self._news.put((remote, stream, line))
        self._news.put((remote, stream, None))

    def _pass_on(self, number: int, frame: Any) -> None:
        self._signal = self._signal or number
        for remote in self._remotes:
            remote.tell(signal.Signals(number).name)

    def _wait(self) -> None:
        open_streams = 2 * len(self._remotes)
        end_at: float | None = None
        told = False
        while open_streams:
            try:
                remote, stream, line = self._news.get(timeout=0.2)
            except queue.Empty:
                pass
            else:
                if line is None:
                    open_streams -= 1
                else:
                    self._show(remote, stream, line)
                continue
            now = time.monotonic()
            if self._look_for_ended() and end_at is None:
                at_once = self._first and self._first.code in _AT_ONCE
                end_at = now + (0.0 if at_once else self._patience)
            if end_at is not None and now > end_at:
                # A second time kills: the launcher at the other end does not answer.
                self._end_the_others(kill=told)
                told, end_at = True, now + self._patience
        self._look_for_ended(wait=True)

    def _show(self, remote: _Remote, stream: str, line: str) -> None:
        # The lines of workers begin with their rank.
        text = line.rstrip("\n")
        if not re.match(r"\[\d+\] ", text):
            text = f"{remote.host.name}: {text}"
        self._display.print_line(stream, text)

    def _look_for_ended(self, *, wait: bool = False) -> bool:
        """Returns whether a launcher has ended."""
        for rank, remote in enumerate(self._remotes):
            if remote.code is not None:
                continue
            code = remote.process.wait() if wait else remote.process.poll()
            if code is None:
                continue
            remote.code = code if code >= 0 else 128 - code
            if code and self._first is None and self._signal is None:
                self._first = remote
                why = (
                    " (ssh could not connect, or the connection broke)"
                    if code == 255
                    else ""
                )
                self._display.print_line(
                    "stderr",
                    f"fastnet: machine {rank} ({remote.host.name}) ended with exit "
                    f"code {remote.code}{why}, ending the others",
                )
        return any(remote.code is not None for remote in self._remotes)

    def _end_the_others(self, *, kill: bool) -> None:
        for remote in self._remotes:
            if remote.code is None and kill:
                remote.process.kill()
            elif remote.code is None:
                remote.tell("SIGTERM")
