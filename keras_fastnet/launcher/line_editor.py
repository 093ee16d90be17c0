r"""`LineEditor`, which turns terminal output into the lines that a reader sees."""

import re
import unicodedata
from dataclasses import dataclass

# Longer lines are cut, so that memory stays bounded.
LONGEST_LINE = 1 << 16

_RUN = re.compile(r"[^\n\r\b\x1b]+")
_STYLE = re.compile(r"\x1b\[[0-9;:]*m")
_SEQUENCE = re.compile(r"\x1b(\[[^@-~]*[@-~]|\(.|[^\[(])", re.DOTALL)
_RESET = "\x1b[0m"
_LONGEST_SEQUENCE = 64
_LONGEST_STYLE = 256
# Control characters other than the tab would disturb the reader's terminal.
_DROPPED = dict.fromkeys([*range(9), *range(10, 32), 127])


@dataclass(frozen=True)
class Line:
    """One line in its final state.

    Attributes:
        styled: The text with its colours, ended by a reset.
        plain: The text without them.
        redrawn: Whether part of the line was overwritten, as progress bars do.
    """

    styled: str
    plain: str
    redrawn: bool


class LineEditor:
    r"""A terminal of one line.

    It interprets `\r`, `\b`, colours and "erase in line" and drops other escape
    sequences. The lines do not depend on how the text is cut into pieces.

    Example:
        >>> editor = LineEditor()
        >>> [line.plain for line in editor.feed("1/2\r2/2\ndone")]
        ['2/2']
        >>> editor.current.plain
        'done'
    """

    def __init__(self) -> None:
        self._cells: list[str] = []  # one character each, after its colours
        self._cursor = 0
        self._redrawn = False
        self._style = ""  # colours written since the last character
        self._sequence = ""  # unfinished escape sequence

    def feed(self, text: str) -> list[Line]:
        """Writes `text` and returns the lines that it completes."""
        lines: list[Line] = []
        position = 0
        while position < len(text):
            if self._sequence:
                position = self._feed_sequence(text, position)
                continue
            run = _RUN.match(text, position)
            if run:
                self._write(run.group().translate(_DROPPED), lines)
                position = run.end()
                continue
            character = text[position]
            position += 1
            if character == "\n":
                lines.append(self._complete())
            elif character == "\r":
                self._cursor = 0
            elif character == "\b":
                self._cursor = max(0, self._cursor - 1)
            else:
                self._sequence = character
        return lines

    def finish(self) -> list[Line]:
        """Returns the last line, if the text did not end with a newline."""
        self._sequence = ""
        return [self._complete()] if self._cells else []

    @property
    def current(self) -> Line:
        """The unfinished line."""
        return _line(self._cells, self._redrawn)

    def clipped(self, columns: int) -> str:
        """Returns the unfinished line with its colours, cut to a terminal's width."""
        for index, cell in enumerate(self._cells):
            wide = unicodedata.east_asian_width(cell[-1]) in "WF"
            columns -= 2 if wide else 1
            if columns < 0:
                return _line(self._cells[:index], False).styled
        return self.current.styled

    def _write(self, text: str, lines: list[Line]) -> None:
        while text:
            part = text[: LONGEST_LINE - self._cursor]
            text = text[len(part) :]
            end = self._cursor + len(part)
            cells = list(part)
            if self._cursor == 0:
                # Each line already ends with a reset.
                self._style = self._style.removeprefix(_RESET)
            cells[0] = self._style + cells[0]
            self._style = ""
            self._redrawn |= self._cursor < len(self._cells)
            self._cells[self._cursor : end] = cells
            self._cursor = end
            if end == LONGEST_LINE:
                lines.append(self._complete())

    def _complete(self) -> Line:
        line = self.current
        self._cells = []
        self._cursor = 0
        self._redrawn = False
        return line

    def _feed_sequence(self, text: str, position: int) -> int:
        """Adds a character to the escape sequence; returns the next position."""
        character = text[position]
        if character in "\n\r\b\x1b" or len(self._sequence) == _LONGEST_SEQUENCE:
            self._sequence = ""  # Incomplete: the character is read as usual.
            return position
        self._sequence += character
        if _SEQUENCE.fullmatch(self._sequence):
            self._interpret(self._sequence)
            self._sequence = ""
        return position + 1

    def _interpret(self, sequence: str) -> None:
        if _STYLE.fullmatch(sequence):
            if sequence in (_RESET, "\x1b[m") or len(self._style) > _LONGEST_STYLE:
                self._style = ""
            self._style += sequence
        elif sequence in ("\x1b[K", "\x1b[0K"):
            self._redrawn |= self._cursor < len(self._cells)
            del self._cells[self._cursor :]
        elif sequence == "\x1b[2K":
            self._redrawn |= bool(self._cells)
            self._cells = [" "] * self._cursor


def _line(cells: list[str], redrawn: bool) -> Line:
    styled = "".join(cells)
    if redrawn:
        # Spaces with which a shorter state of a progress bar erases a longer one.
        styled = styled.rstrip(" ")
    plain = _STYLE.sub("", styled)
    return Line(styled if plain == styled else styled + _RESET, plain, redrawn)
