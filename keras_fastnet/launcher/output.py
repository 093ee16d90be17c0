"""Shows the workers' output: prefixed lines and one progress bar."""

import codecs
import os
import re
import shutil
import time
from collections import deque
from typing import IO, TextIO

from keras_fastnet.launcher.line_editor import Line, LineEditor

LAST_LINES = 20
FAILURE_FOLLOWS = "fastnet: the traceback of a failure follows"
"""Written by a worker before the traceback of the exception that ends it."""

_LONGEST_TRACEBACK = 1000
_ERASE = "\r\x1b[K"
# Lines of TensorFlow that are neither warnings nor errors: C++ information lines in the
# older and the present form, and two that accompany them.
_START_UP = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I |"
    r"I\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\] |"
    r"WARNING: All log messages before absl::InitializeLog\(\) is called|"
    r"To enable the following instructions: "
)
# Errors that a TensorFlow built for GPUs prints where there is none.
_WITHOUT_GPU = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: E |E\d{4} \d\d:\d\d:[\d.]+ +\d+ )\S+ "
    r"(failed call to cuInit|Unable to register cu\w+ factory)"
)
# Lines of Python's logging.
_INFORMATION = re.compile(r"(INFO|DEBUG):")
# The line of a traceback that names the exception.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|$)")
# TensorFlow's C++ lines of any level. The last line of a traceback is not indented.
_OF_TENSORFLOW = re.compile(r"[WEF]\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\S+ [WEF] |\s")


def is_of_start_up(line: str, gpus: bool) -> bool:
    """Returns whether a line of stderr is one of TensorFlow's that asks for nothing.

    Args:
        line: The line.
        gpus: Whether there are GPUs, so that errors about them matter.
    """
    if _START_UP.match(line):
        return True
    return not gpus and _WITHOUT_GPU.match(line) is not None


def is_information(line: str) -> bool:
    """Returns whether a line of stderr is neither a warning nor an error."""
    return not line.strip() or bool(_START_UP.match(line) or _INFORMATION.match(line))


class Display:
    """The launcher's own stdout and stderr.

    Complete lines are written with their prefix. On a terminal, the unfinished line of
    one worker, such as its progress bar, is shown below them and redrawn in place.

    Args:
        stdout: Receives the workers' stdout.
        stderr: Receives the workers' stderr and the launcher's messages.

    Attributes:
        broken: Whether a reader has closed its pipe (`fastnet run … | head`).
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.broken = False
        self._streams = {"stdout": stdout, "stderr": stderr}
        dumb = os.environ.get("TERM") == "dumb"
        self._terminals = {
            name: stream.isatty() and not dumb for name, stream in self._streams.items()
        }
        self._live = ""
        self._live_stream = ""

    def print_line(self, stream: str, text: str) -> None:
        """Prints one line on `stream`, "stdout" or "stderr"."""
        if self._terminals[stream] and self._live:
            self._write(self._live_stream, _ERASE)
            self._write(stream, f"{text}\n")
            self._write(self._live_stream, self._live)
        else:
            self._write(stream, f"{text}\n")

    def print_worker_line(self, stream: str, rank: int, line: Line) -> None:
        """Prints a line of a worker, with colours only on a terminal."""
        text = line.styled if self._terminals[stream] else line.plain
        self.print_line(stream, f"[{rank}] {text}")

    def draw(self, stream: str, rank: int, editor: LineEditor) -> None:
        """Shows an unfinished line in place, if `stream` is a terminal."""
        if not self._terminals[stream]:
            return
        prefix = f"[{rank}] "
        # The last column stays free: some terminals wrap when it is filled.
        columns = shutil.get_terminal_size().columns - len(prefix) - 1
        text = editor.clipped(columns).replace("\t", " ")
        if not text:
            self.erase(stream)
            return
        live = prefix + text
        if live == self._live:
            return
        if self._live:
            self._write(self._live_stream, _ERASE)
        self._live, self._live_stream = live, stream
        self._write(stream, live)

    def erase(self, stream: str) -> None:
        """Removes the unfinished line of `stream`."""
        if self._live_stream == stream:
            self._write(stream, _ERASE)
            self._live = self._live_stream = ""

    def _write(self, name: str, text: str) -> None:
        stream = self._streams[name]
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
        except OSError as error:
            self.broken = self.broken or isinstance(error, BrokenPipeError)
            # Text that is still buffered would raise again when the launcher exits.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            if not isinstance(error, BrokenPipeError):
                other = "stderr" if name == "stdout" else "stdout"
                self._write(
                    other,
                    f"fastnet: {name} cannot be written ({error.strerror}); it ends "
                    "here, training goes on\n",
                )


class WorkerOutput:
    """Turns the bytes that one worker writes into lines; shows, logs and keeps them.

    The traceback of the exception that ends a worker is kept, so that only that of the
    first failure is shown.

    Args:
        rank: The worker's rank.
        display: Shows the lines: all lines of rank 0, and of other ranks the warnings
            and errors on stderr.
        show_all: Shows all lines, whatever the rank. Defaults to `False`.
        tf_logs: Shows TensorFlow's information lines too. Defaults to `False`.
        gpus: Whether there are GPUs, so that errors about them are shown. Defaults to
            `False`.
        log: Receives every line. Defaults to `None`.

    Attributes:
        failed_at: When the traceback of a failure began, in seconds since 1970; `None`
            without one.
        failure_shown: Whether it has been shown.
        last_lines: The newest lines of stdout and stderr together.
        last_error: The newest line of stderr that may be the program's own error;
            `None` if there is none.
    """

    def __init__(
        self,
        rank: int,
        display: Display,
        *,
        show_all: bool = False,
        tf_logs: bool = False,
        gpus: bool = False,
        log: IO[str] | None = None,
    ) -> None:
        self.rank = rank
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.last_error: str | None = None
        self.failed_at: float | None = None
        self.failure_shown = False
        self._traceback: list[Line] = []
        self._unseen: deque[Line] = deque(maxlen=LAST_LINES)
        self._display = display
        self._shown_whole = show_all or rank == 0
        self._tf_logs = tf_logs
        self._gpus = gpus
        self._log = log
        self._editors = {"stdout": LineEditor(), "stderr": LineEditor()}
        make_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make_decoder("replace") for name in self._editors}

    @property
    def keeps_failure(self) -> bool:
        """Whether there is a traceback that has not been shown."""
        return self.failed_at is not None and not self.failure_shown

    @property
    def unseen(self) -> list[str]:
        """The last lines that were not shown, and the whole kept traceback."""
        return [line.plain for line in (*self._unseen, *self._traceback)]

    @property
    def exception(self) -> str:
        """The line of the kept traceback that names the exception; empty without."""
        found = ""
        for line in self._traceback:
            if line.plain.startswith("Traceback ("):
                found = ""  # The one before it is its cause.
            elif not found and _EXCEPTION.match(line.plain):
                found = line.plain
        return found

    def show_failure(self) -> None:
        """Shows the kept traceback; its later lines are shown when they come."""
        for line in (*self._unseen, *self._traceback):
            self._display.print_worker_line("stderr", self.rank, line)
        self._unseen.clear()
        self._traceback.clear()
        self.failure_shown = True
        self._shown_whole = True

    def feed(self, stream: str, data: bytes) -> None:
        """Takes bytes of `stream`, "stdout" or "stderr". Empty bytes mean its end."""
        editor = self._editors[stream]
        lines = editor.feed(self._decoders[stream].decode(data, final=not data))
        if not data:
            lines += editor.finish()
        if self.rank == 0 and lines:
            # The unfinished line that was shown is now complete.
            self._display.erase(stream)
        if stream == "stderr":
            lines = [line for line in lines if not self._is_announcement(line)]
        for line in lines:
            self._take(stream, line)
        self._write_log(lines)
        if self.rank == 0 and (stream == "stdout" or not self.keeps_failure):
            self._display.draw(stream, self.rank, editor)

    def _is_announcement(self, line: Line) -> bool:
        if line.plain != FAILURE_FOLLOWS:
            return False
        self.failed_at = time.time()
        return True

    def _take(self, stream: str, line: Line) -> None:
        self.last_lines.append(line.plain)
        if _tells(stream, line) and not _OF_TENSORFLOW.match(line.plain):
            self.last_error = line.plain
        if stream == "stderr" and self.keeps_failure:
            if len(self._traceback) < _LONGEST_TRACEBACK:
                self._traceback.append(line)
        elif self._is_hidden(stream, line):
            pass
        elif self._shown_whole or _tells(stream, line):
            self._display.print_worker_line(stream, self.rank, line)
        elif not line.redrawn:
            self._unseen.append(line)

    def _is_hidden(self, stream: str, line: Line) -> bool:
        return (
            stream == "stderr"
            and not self._tf_logs
            and is_of_start_up(line.plain, self._gpus)
        )

    def _write_log(self, lines: list[Line]) -> None:
        if self._log is None or not lines:
            return
        try:
            self._log.write("".join(f"{line.plain}\n" for line in lines))
            self._log.flush()
        except OSError as error:
            # Training is worth more than its log.
            self._log = None
            self._display.print_line(
                "stderr",
                f"fastnet: the log of worker {self.rank} cannot be written "
                f"({error.strerror}); it ends here, training goes on",
            )


def _tells(stream: str, line: Line) -> bool:
    """Returns whether a line is a warning or an error."""
    # A line that was redrawn is a progress bar. Rank 0 shows one already.
    return stream == "stderr" and not line.redrawn and not is_information(line.plain)
