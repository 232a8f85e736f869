"""Lines of a pasted text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.numbers import is_missing, number

#: No format has longer lines: 1024 numbers of 30 characters.
MAX_LINE = 65_536


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its number, from 1."""

    number: int
    text: str

    @property
    def words(self) -> list[str]:
        """What blanks separate."""
        return self.text.split()


_DRESSING = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|^\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?", re.MULTILINE)


def split_lines(text: str) -> list[Line]:
    """All lines with something on them, without colours, quotation marks, and the ``[1,0]<stdout>:`` of mpirun.

    Raises
    ------
    UnreadableInput
        When a line is too long for any format.
    """
    plain = _DRESSING.sub("", text).splitlines()
    if all(line.startswith(">") for line in plain if line.strip()):
        plain = [line[1:] for line in plain]
    lines = [Line(i, line) for i, line in enumerate(plain, 1) if line.strip()]
    for line in lines:
        if len(line.text) > MAX_LINE:
            raise UnreadableInput("too_large", f"longer than {MAX_LINE} characters", at_line(line.number))
    return lines


def cells(words: list[str], line: int, first_column: int = 1) -> list[float]:
    """Numbers of a row; NaN where a cell says that there is none."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if values and all(0 <= value < math.inf for value in values):
        return values
    return [
        math.nan if is_missing(word) else number(word, at_line(line, first_column + i))
        for i, word in enumerate(words)
    ]
