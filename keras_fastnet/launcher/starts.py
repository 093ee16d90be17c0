"""All starts of one launch: one, and further ones after failures or on request."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Sequence
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
from keras_fastnet.launcher.output import Display
from keras_fastnet.launcher.report import Report
from keras_fastnet.launcher.restarts import Restarts, divided
from keras_fastnet.launcher.start import Starter
from keras_fastnet.launcher.supervisor import Ending, Supervisor
from keras_fastnet.launcher.worker_environment import local_addresses
from keras_fastnet.launcher.worker_process import TOLD_TO_END
from keras_fastnet.text import count


class Starts:
    """Starts the workers, again after failures or for another number of workers.

    Args:
        starter: Starts the workers of this machine.
        supervisor: Watches them.
        display: Shows messages.
        restarts: Decides about restarts.
        report: Receives what has happened.
        log_path: The folder of the workers' logs; `None` if there is none.
        nodes: The launchers of all machines; `None` if there is one machine.
        on_failure: Receives the lines about a failure; `None` to display them.
    """

    def __init__(
        self,
        starter: Starter,
        supervisor: Supervisor,
        display: Display,
        restarts: Restarts,
        report: Report,
        log_path: Path | None,
        nodes: Any | None,
        on_failure: Callable[[Sequence[str]], object] | None,
    ) -> None:
        self._starter = starter
        self._supervisor = supervisor
        self._display = display
        self._restarts = restarts
        self._report = report
        self._log_path = log_path
        self._nodes = nodes
        self._on_failure = on_failure or self._show
        self._exit_code = 2
        self._outcome = "failed"
        self._refusal: str | None = None
        self._number = -1
        self._has_started = False
        # Why a machine is lost.
        self._lost: str | None = None
        # Of this start: the workers of each machine; whether workers have left on
        # request; and that request, if there is one machine.
        self._machines: list[dict[str, Any]] = []
        self._left = False
        self._own_wish: list[int] | None = None
        supervisor.ask = self._reason_to_end
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

    def scale(self, workers: int) -> str:
        """Has training continue with another number of workers.

        Args:
            workers: The number on all machines.

        Returns:
            What follows from it.

        Raises:
            UsageError: If this is not possible, now or at all.
        """
        now, least, most = (
            sum(machine[key] for machine in self._machines)
            for key in ("workers", "least", "most")
        )
        if not self._supervisor.workers or self._wish is not None:
            raise UsageError(
                "`fastnet scale` needs workers that train. Received: workers that are "
                "being started or ended. Repeat it when training goes on."
            )
        if not least <= workers <= most:
            raise UsageError(
                "The number of workers must be one with which training may continue, "
                f"from {least} to {most} as this `fastnet run` was started. Received: "
                f"{workers}. Pass --min-workers and --max-workers to `fastnet run` for "
                "other limits."
            )
        if workers == now:
            raise UsageError(
                f"The number of workers must be another one. Received: {workers}, with "
                "which training runs."
            )
        if not self._is_backed_up():
            raise UsageError(
                "`fastnet scale` needs a `fit` with "
                "`keras_fastnet.callbacks.BackupAndRestore`, from which training "
                "resumes. Received: workers that have begun none. Repeat it when `fit` "
                "has begun, or add the callback."
            )
        wish = divided(workers, self._machines)
        if self._nodes is None:
            self._own_wish = wish
            self._supervisor.wake()
        else:
            self._nodes.wish(self._number, wish)
        return (
            f"training ends at the next update and continues with "
            f"{count(workers, 'worker')} instead of {now}"
        )

    def _is_backed_up(self) -> bool:
        """Returns whether rank 0 is within a `fit` with `BackupAndRestore`."""
        told = self._starter.told_by(self._supervisor.workers[0])
        kinds = [event["kind"] for event in told.events]
        return [kind for kind in kinds if kind in ("fit", "removed")][-1:] == ["fit"]

    @property
    def _wish(self) -> list[int] | None:
        """The number of workers of each machine that was asked for in this start."""
        if self._nodes is None:
            return self._own_wish
        return self._nodes.wishes.get(self._number)

    def _start_once(self) -> bool:
        """Starts all workers; returns whether to do so again."""
        restarts, supervisor = self._restarts, self._supervisor
        self._number += 1
        self._own_wish = None
        addresses = self._agree_on_addresses()
        if addresses is None:
            return self._join_again()
        self._report.begin(restarts.slots, restarts.made)
        try:
            exit_code, ends = self._starter.run(
                restarts.slots, supervisor, self._display, *addresses
            )
        except (OSError, UsageError) as error:
            if not self._has_started:
                raise
            self._refuse(f"the workers could not be started again ({error})")
            return False
        self._has_started = True
        self._exit_code = exit_code
        self._left = supervisor.left
        restarts.learn(ends)
        failure = self._found_failure(ends)
        wish = self._wish
        self._report.end_start(ends, failure, None if wish is None else sum(wish))
        if supervisor.signal is not None:
            self._end_by_signal()
            return False
        cause = None if failure is None else failure.cause
        if self._nodes is not None:
            goes_on, cause = self._compare_ends(self._nodes, cause)
            if not goes_on:
                return self._join_again()
        if self._wish is not None and self._exit_code == TOLD_TO_END:
            # On another machine workers had been asked to leave before.
            cause, self._left = None, True
        if self._display.broken or (cause is None and not self._left):
            self._outcome = "failed" if self._exit_code else "succeeded"
            return False
        if self._wish is not None:
            own = 0 if self._nodes is None else self._nodes.rank
            restarts.resize(self._wish[own])
        return self._continue() if cause is None else self._decide(cause)

    def _found_failure(self, ends: list[WorkerEnd]) -> Failure | None:
        supervisor = self._supervisor
        first = supervisor.first_failure
        if first is None:
            return None
        failure = find_failure(
            ends, first.rank, supervisor.failed_at, supervisor.suspended
        )
        self._on_failure(failure_lines(failure, ends, self._log_path))
        return failure

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._display.print_line("stderr", line)

    def _decide(self, cause: Cause) -> bool:
        restarts = self._restarts
        refusal = restarts.refusal(cause)
        if refusal is not None:
            if restarts.allowed:
                self._refusal = refusal
                self._say(f"not restarted: {refusal}")
            return False
        return self._continue(restarts.pause)

    def _continue(self, pause: float = 0.0) -> bool:
        """Says how, and waits; returns whether no signal came."""
        restarts = self._restarts
        for note in restarts.notes:
            self._say(note)
        for log in filter(None, self._starter.logs):
            with contextlib.suppress(OSError):
                log.write(f"fastnet: {restarts.notes[-1]}\n")
        if self._supervisor.pause(pause):
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
        restarts = self._restarts
        ports = [self._starter.ports[slot] for slot in restarts.slots]
        own = {
            "ports": ports,
            "workers": len(ports),
            "least": restarts.least,
            "most": restarts.most,
            "made": restarts.made,
        }
        if self._nodes is None:
            self._machines = [own]
            return local_addresses(ports), 0
        if not self._number:
            self._say(
                f"machine {self._nodes.rank} of {self._nodes.size}, waiting for the "
                f"others at {self._nodes.rendezvous}"
            )
        infos = self._exchange(self._nodes, f"start {self._number}", own)
        if infos is None:
            return None
        self._machines = infos
        # A launcher that was started again has made none.
        restarts.made = max(info["made"] for info in infos)
        addresses = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, info in zip(self._nodes.hosts, infos, strict=True)
            for port in info["ports"]
        ]
        before = sum(len(info["ports"]) for info in infos[: self._nodes.rank])
        return addresses, before

    def _exchange(
        self, nodes: Any, topic: str, own: dict[str, Any]
    ) -> list[dict] | None:
        """Returns what all machines say; `None` if the launch ends instead."""
        nodes.say(topic, own)
        start = self._number

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
            self._lost = nodes.problem
        return heard

    def _join_again(self) -> bool:
        """Returns whether to start again, together with a machine that was lost."""
        nodes, lost, self._lost = self._nodes, self._lost, None
        if nodes is None or lost is None:
            return False
        if not nodes.hosts:
            # They never met: the text states what to do.
            self._refuse(lost)
            return False
        refusal = self._restarts.refusal(Cause(-1, -1, lost, here=False))
        if refusal is not None:
            self._refuse(
                f"{lost}; not restarted: {refusal}. Start `fastnet run` on all "
                "machines again"
            )
            return False
        self._say(
            f"{lost}; start `fastnet run` there again within 60 s if it has ended"
        )
        nodes.join_again()
        self._number = -1
        return self._continue(self._restarts.pause)

    def _compare_ends(
        self, nodes: Any, cause: Cause | None
    ) -> tuple[bool, Cause | None]:
        """Returns whether to go on, and the first failure on any machine."""
        restarts = self._restarts
        own = {
            "cause": None if cause is None else dataclasses.asdict(cause),
            "exit_code": self._exit_code,
            "left": self._left,
            "backup": restarts.backup,
            "knows_backups": restarts.knows_backups,
        }
        infos = self._exchange(nodes, f"end {self._number}", own)
        if infos is None:
            return False, None
        # Rank 0, on machine 0, writes the backups.
        restarts.backup = infos[0]["backup"]
        restarts.knows_backups = infos[0]["knows_backups"]
        self._left = any(info["left"] for info in infos)
        alarm = nodes.alarms.get(self._number)
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
                {
                    "machine": alarm["node"],
                    "host": host,
                    "rank": found.rank,
                    "slot": found.slot,
                    "reason": found.reason,
                    "error": found.error,
                    "position": found.position,
                }
            )
            found = dataclasses.replace(found, here=False)
        return True, found

    def _end_by_signal_elsewhere(self, alarm: dict[str, Any]) -> None:
        self._outcome = f"ended by {alarm['signal']} on machine {alarm['node']}"
        self._exit_code = 128 + signal.Signals[alarm["signal"]]

    def _reason_to_end(self) -> Ending | None:
        """Returns why the workers must end; `None` if they need not."""
        nodes = self._nodes
        if nodes is not None:
            alarm = nodes.alarms.get(self._number)
            if alarm is not None and alarm["node"] != nodes.rank:
                host = f"machine {alarm['node']} ({nodes.hosts[alarm['node']]})"
                if "signal" in alarm:
                    return Ending(f"{alarm['signal']} on {host}")
                return Ending(f"a worker failed on {host}")
            if nodes.problem is not None:
                return Ending(nodes.problem)
        if self._wish is not None:
            return Ending(f"`fastnet scale {sum(self._wish)}`", gently=True)
        return None

    def _alarm(self) -> None:
        if self._nodes is not None:
            number = self._supervisor.signal
            told = {} if number is None else {"signal": signal.Signals(number).name}
            self._nodes.alarm(self._number, told)
