"""Shows the workers' output: prefixed lines and one progress bar."""

import codecs
import os
import re
import shutil
from collections import deque
from typing import IO, TextIO

from keras_fastnet.launcher.line_editor import Line, LineEditor

LAST_LINES = 20

_ERASE = "\r\x1b[K"
# Lines of stderr that are neither warnings nor errors: TensorFlow's C++ information
# lines in the older and the present form, two that accompany them, Python's logging.
_INFORMATION = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I |"
    r"I\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\] |"
    r"WARNING: All log messages before absl::InitializeLog\(\) is called|"
    r"To enable the following instructions: |"
    r"(INFO|DEBUG):"
)
# TensorFlow's C++ lines of any level. The last line of a traceback is not indented.
_OF_TENSORFLOW = re.compile(r"[WEF]\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\S+ [WEF] |\s")


def is_information(line: str) -> bool:
    """Returns whether a line of stderr is neither a warning nor an error."""
    return not line.strip() or _INFORMATION.match(line) is not None


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

    Args:
        rank: The worker's rank.
        display: Shows the lines: all lines of rank 0, and of other ranks the warnings
            and errors on stderr.
        show_all: Shows all lines, whatever the rank. Defaults to `False`.
        log: Receives every line. Defaults to `None`.

    Attributes:
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
        log: IO[str] | None = None,
    ) -> None:
        self.rank = rank
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.last_error: str | None = None
        self._display = display
        self._shown_whole = show_all or rank == 0
        self._log = log
        self._editors = {"stdout": LineEditor(), "stderr": LineEditor()}
        make_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make_decoder("replace") for name in self._editors}

    def feed(self, stream: str, data: bytes) -> None:
        """Takes bytes of `stream`, "stdout" or "stderr". Empty bytes mean its end."""
        editor = self._editors[stream]
        lines = editor.feed(self._decoders[stream].decode(data, final=not data))
        if not data:
            lines += editor.finish()
        if self.rank == 0 and lines:
            # The unfinished line that was shown is now complete.
            self._display.erase(stream)
        for line in lines:
            self.last_lines.append(line.plain)
            if _tells(stream, line) and not _OF_TENSORFLOW.match(line.plain):
                self.last_error = line.plain
            if self._shown_whole or _tells(stream, line):
                self._display.print_worker_line(stream, self.rank, line)
        self._write_log(lines)
        if self.rank == 0:
            self._display.draw(stream, self.rank, editor)

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
