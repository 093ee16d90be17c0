"""All starts of one launch: one, and further ones after failures."""

import contextlib
import dataclasses
import signal
from pathlib import Path
from typing import Any

from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.failure import (
    Cause,
    Failure,
    WorkerEnd,
    failure_lines,
    find_failure,
)
from keras_fastnet.launcher.nodes import Nodes
from keras_fastnet.launcher.output import Display
from keras_fastnet.launcher.report import Report
from keras_fastnet.launcher.restarts import Restarts
from keras_fastnet.launcher.start import Starter
from keras_fastnet.launcher.supervisor import Supervisor
from keras_fastnet.launcher.worker_environment import local_addresses


class Starts:
    """Starts the workers, again after failures.

    Args:
        starter: Starts the workers of this machine.
        supervisor: Watches them.
        display: Shows messages.
        restarts: Decides about restarts.
        report: Receives what has happened.
        log_path: The folder of the workers' logs; `None` if there is none.
        nodes: The launchers of all machines; `None` if there is one machine.
    """

    def __init__(
        self,
        starter: Starter,
        supervisor: Supervisor,
        display: Display,
        restarts: Restarts,
        report: Report,
        log_path: Path | None,
        nodes: Nodes | None,
    ) -> None:
        self._starter = starter
        self._supervisor = supervisor
        self._display = display
        self._restarts = restarts
        self._report = report
        self._log_path = log_path
        self._nodes = nodes
        self._exit_code = 2
        self._outcome = "failed"
        self._refusal: str | None = None
        if nodes is not None:
            supervisor.ask = self._ended_elsewhere
            supervisor.on_failure = self._alarm

    def run(self) -> int:
        """Returns the exit code of the launch when all is done."""
        try:
            while self._start_once():
                pass
        finally:
            problem = self._report.end(self._outcome, self._exit_code, self._refusal)
            if problem is not None:
                self._say(f"the report cannot be written ({problem})")
        return self._exit_code

    def _start_once(self) -> bool:
        """Starts all workers; returns whether to do so again."""
        restarts, supervisor = self._restarts, self._supervisor
        addresses = self._agree_on_addresses()
        if addresses is None:
            return False
        self._report.begin(restarts.slots)
        try:
            exit_code, ends = self._starter.run(
                restarts.slots, supervisor, self._display, *addresses
            )
        except (OSError, UsageError) as error:
            if not restarts.made:
                raise
            self._refuse(f"the workers could not be started again ({error})")
            return False
        self._exit_code = exit_code
        restarts.learn(ends)
        failure = self._found_failure(ends)
        self._report.end_start(ends, failure)
        if supervisor.signal is not None:
            self._end_by_signal()
            return False
        cause = None if failure is None else failure.cause
        if self._nodes is not None:
            goes_on, cause = self._compare_ends(self._nodes, cause)
            if not goes_on:
                return False
        if cause is None or self._display.broken:
            self._outcome = "failed" if self._exit_code else "succeeded"
            return False
        return self._decide(cause)

    def _found_failure(self, ends: list[WorkerEnd]) -> Failure | None:
        supervisor = self._supervisor
        first = supervisor.first_failure
        if first is None:
            return None
        failure = find_failure(
            ends, first.rank, supervisor.failed_at, supervisor.suspended
        )
        for line in failure_lines(failure, ends, self._log_path):
            self._display.print_line("stderr", line)
        return failure

    def _decide(self, cause: Cause) -> bool:
        restarts = self._restarts
        refusal = restarts.refusal(cause)
        if refusal is not None:
            if restarts.most:
                self._refusal = refusal
                self._say(f"not restarted: {refusal}")
            return False
        for note in restarts.notes:
            self._say(note)
        for log in filter(None, self._starter.logs):
            with contextlib.suppress(OSError):
                log.write(f"fastnet: {restarts.notes[-1]}\n")
        if self._supervisor.pause(restarts.pause):
            return True
        self._alarm()
        self._end_by_signal()
        return False

    def _end_by_signal(self) -> None:
        number = self._supervisor.signal or 0
        self._outcome = f"ended by {signal.Signals(number).name}"
        self._exit_code = 128 + number

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._say(reason)

    def _say(self, text: str) -> None:
        self._display.print_line("stderr", f"fastnet: {text}")

    # What follows is for several machines.

    def _agree_on_addresses(self) -> tuple[list[str], int] | None:
        """Returns the addresses of all workers and the rank of the first one here.

        `None` if the launch ends instead.
        """
        own = [self._starter.ports[slot] for slot in self._restarts.slots]
        if self._nodes is None:
            return local_addresses(own), 0
        if not self._restarts.made:
            self._say(
                f"machine {self._nodes.rank} of {self._nodes.size}, waiting for the "
                f"others at {self._nodes.rendezvous}"
            )
        infos = self._exchange(
            self._nodes, f"start {self._restarts.made}", {"ports": own}
        )
        if infos is None:
            return None
        addresses = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, info in zip(self._nodes.hosts, infos, strict=True)
            for port in info["ports"]
        ]
        before = sum(len(info["ports"]) for info in infos[: self._nodes.rank])
        return addresses, before

    def _exchange(
        self, nodes: Nodes, topic: str, own: dict[str, Any]
    ) -> list[dict] | None:
        """Returns what all machines say; `None` if the launch ends instead."""
        nodes.say(topic, own)
        start = self._restarts.made

        def ready() -> bool:
            return (
                nodes.heard(topic) is not None
                or nodes.problem is not None
                or "signal" in nodes.alarms.get(start, {})
            )

        if not self._supervisor.pause(until=ready):
            self._alarm()
            self._end_by_signal()
            return None
        heard = nodes.heard(topic)
        alarm = nodes.alarms.get(start, {})
        if heard is None and "signal" in alarm:
            self._end_by_signal_elsewhere(alarm)
        elif heard is None:
            self._exit_code = self._exit_code or 1
            self._refuse(f"{nodes.problem}")
        return heard

    def _compare_ends(
        self, nodes: Nodes, cause: Cause | None
    ) -> tuple[bool, Cause | None]:
        """Returns whether to go on, and the first failure on any machine."""
        restarts = self._restarts
        own = {
            "cause": None if cause is None else dataclasses.asdict(cause),
            "exit_code": self._exit_code,
            "backup": restarts.backup,
            "knows_backups": restarts.knows_backups,
        }
        infos = self._exchange(nodes, f"end {restarts.made}", own)
        if infos is None:
            return False, None
        # Rank 0, on machine 0, writes the backups.
        restarts.backup = infos[0]["backup"]
        restarts.knows_backups = infos[0]["knows_backups"]
        alarm = nodes.alarms.get(restarts.made)
        if alarm is None:
            return True, None
        if "signal" in alarm:
            self._end_by_signal_elsewhere(alarm)
            return False, None
        first = infos[alarm["node"]]
        self._exit_code = first["exit_code"]
        found = Cause(**first["cause"])
        if alarm["node"] != nodes.rank:
            host = nodes.hosts[alarm["node"]]
            self._say(
                f"on machine {alarm['node']} ({host}), worker {found.rank} failed "
                f"first: {found.reason}"
            )
            self._report.add_failure_elsewhere(
                {"machine": alarm["node"], "host": host, **dataclasses.asdict(found)}
            )
        return True, found

    def _end_by_signal_elsewhere(self, alarm: dict[str, Any]) -> None:
        self._outcome = f"ended by {alarm['signal']} on machine {alarm['node']}"
        self._exit_code = 128 + signal.Signals[alarm["signal"]]

    def _ended_elsewhere(self) -> str | None:
        """Returns why the workers here must end, because of another machine."""
        nodes = self._nodes
        if nodes is None:
            return None
        alarm = nodes.alarms.get(self._restarts.made)
        if alarm is not None and alarm["node"] != nodes.rank:
            host = f"machine {alarm['node']} ({nodes.hosts[alarm['node']]})"
            if "signal" in alarm:
                return f"{alarm['signal']} on {host}"
            return f"a worker failed on {host}"
        return nodes.problem

    def _alarm(self) -> None:
        if self._nodes is not None:
            number = self._supervisor.signal
            told = {} if number is None else {"signal": signal.Signals(number).name}
            self._nodes.alarm(self._restarts.made, told)
