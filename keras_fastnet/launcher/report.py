"""`--report`: a JSON file about the starts of a launch and their failures."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.failure import Failure, WorkerEnd


class Report:
    """Writes what has happened to a file, after every start.

    Args:
        path: The file; `None` to write nothing.
        **launch: What is known before the first start; JSON can hold it.

    Raises:
        UsageError: If the file cannot be written.
    """

    def __init__(self, path: Path | None, **launch: Any) -> None:
        self._path = path
        self._starts: list[dict[str, Any]] = []
        self._content = {
            **launch,
            "began": _now(),
            "ended": None,
            "outcome": "running",
            "exit_code": None,
            "restarts": 0,
            "starts": self._starts,
        }
        try:
            self._write()
        except OSError as error:
            raise UsageError(
                "--report must be a file that can be written. Received: "
                f"{path} ({error.strerror}). Choose another path."
            ) from error

    def begin(self, slots: Sequence[int], restarts: int) -> None:
        """Adds a start.

        Args:
            slots: The slots, by the worker's rank.
            restarts: How many starts followed a failure, with this one.
        """
        self._content["restarts"] = restarts
        start = {"began": _now(), "workers": len(slots), "slots": list(slots)}
        self._starts.append(start)

    def end_start(
        self,
        ends: Sequence[WorkerEnd],
        failure: Failure | None,
        scaled_to: int | None,
    ) -> None:
        """Adds how a start has ended.

        Args:
            ends: How each worker ended.
            failure: Why it failed; `None` if it did not.
            scaled_to: The number of workers that `fastnet scale` asked for during the
                start; `None` if it did not.
        """
        told = sorted(
            (event for end in ends for event in end.events), key=lambda e: e["time"]
        )
        fits = [event["backup"] for event in told if event["kind"] == "fit"]
        written = [event["backup"] for event in told if event["kind"] == "backup"]
        self._starts[-1].update(
            ended=_now(),
            resumed_from=fits[0] if fits else None,
            last_backup=written[-1] if written else None,
            failure=None if failure is None else _described_failure(failure),
            scaled_to=scaled_to,
            workers_at_end=[_described(end) for end in ends],
        )
        with contextlib.suppress(OSError):
            self._write()

    def add_failure_elsewhere(self, failure: dict[str, Any]) -> None:
        """Adds why the last start failed, on another machine.

        Args:
            failure: JSON can hold it.
        """
        self._starts[-1]["failure_elsewhere"] = failure

    def end(self, outcome: str, exit_code: int, reason: str | None) -> str | None:
        """Completes the report; returns why it cannot be written, or `None`.

        Args:
            outcome: "succeeded", "failed" or "ended by" a signal.
            exit_code: The launcher's exit code.
            reason: Why the workers were not started again; `None` if they had not
                failed.
        """
        self._content.update(
            outcome=outcome, exit_code=exit_code, not_restarted=reason, ended=_now()
        )
        try:
            self._write()
        except OSError as error:
            return error.strerror
        return None

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps(self._content, indent=1) + "\n"
        if self._path.exists() and not self._path.is_file():
            # Such as /dev/stdout.
            self._path.write_text(text, encoding="utf-8")
            return
        # Another program may read it at any time.
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            new.write_text(text, encoding="utf-8")
            os.replace(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise


def _described_failure(failure: Failure) -> dict[str, Any]:
    worker = failure.worker
    error = worker.told("error")
    return {
        "rank": worker.rank,
        "slot": worker.slot,
        "time": _time(failure.time),
        "reason": failure.reason,
        "exception": error and {"type": error["type"], "message": error["message"]},
        "suspended": list(failure.suspended),
        "others_found": failure.verdict,
    }


def _described(end: WorkerEnd) -> dict[str, Any]:
    code = end.exit_code
    return {
        "rank": end.rank,
        "slot": end.slot,
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": _signal_name(-code) if code is not None and code < 0 else None,
        "doing": end.doing,
        "last_lines": list(end.lines),
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _now() -> str:
    return _time(time.time())


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
