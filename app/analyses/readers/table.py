"""Tables with a header: CSV, tabs, Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.lines import Line, split_lines


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of one line, by column."""

    line: int
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A header and rows of its width."""

    header: Sequence[str]
    rows: Sequence[Row]
    line: int

    def column(self, pattern: str) -> int | None:
        """First column whose name has a match, ignoring case."""
        return next((i for i, name in enumerate(self.header) if re.search(pattern, name, re.IGNORECASE)), None)

    def columns(self, pattern: str) -> list[int]:
        """All such columns."""
        return [i for i, name in enumerate(self.header) if re.search(pattern, name, re.IGNORECASE)]


def read_rows(text: str) -> tuple[list[Row], str]:
    """Cells of each line: Markdown, tab or comma separated; and the text above them.

    That is of comments (#) and lines that are none of the table. Rules are skipped.

    Raises
    ------
    UnreadableInput
        When a quoted cell has no end.
    """
    lines = [line for line in split_lines(text) if not line.text.lstrip().startswith("#")]
    if not lines:
        return [], ""
    barred = [line for line in lines if line.text.count("|") >= 2]
    if len(barred) >= len(lines) / 2:
        title = " ".join(line.text for line in split_lines(text) if line.number < barred[0].number)
        rows = [Row(line.number, [cell.strip().strip("*") for cell in _bars(line)]) for line in barred]
        return [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row.cells)], title
    delimiter = next((d for line in lines[:2] for d in ("\t", ",", ";") if d in line.text), ",")
    above = lines[:1] if len(lines) > 2 and delimiter not in lines[0].text else []
    comments = [line for line in split_lines(text) if line.text.lstrip().startswith("#")]
    title = " ".join(line.text for line in [*comments, *above])
    return [Row(line.number, _split(line, delimiter)) for line in lines[len(above) :]], title


def _bars(line: Line) -> list[str]:
    return line.text.strip().strip("|").split("|")


def _split(line: Line, delimiter: str) -> list[str]:
    try:
        return [
            cell.strip() for cell in next(csv.reader(io.StringIO(line.text), delimiter=delimiter, strict=True))
        ]
    except csv.Error as error:
        raise UnreadableInput(
            "broken_table", f"the line cannot be split into cells ({error})", at_line(line.number)
        ) from None


def as_table(rows: Sequence[Row]) -> Table:
    """First row as the header.

    Raises
    ------
    UnreadableInput
        When a row has another number of cells, or a column name stands twice, in capitals or not.
    """
    header = [name.strip() for name in rows[0].cells]
    seen: set[str] = set()
    for name in map(str.lower, header):
        if name and name in seen:
            raise UnreadableInput("named_twice", f"column {name!r} stands there twice", at_line(rows[0].line))
        seen.add(name)
    for row in rows[1:]:
        if len(row.cells) != len(header):
            text = f"has {len(row.cells)} cells, the header has {len(header)}"
            raise UnreadableInput("ragged_table", text, at_line(row.line))
    return Table(header, rows[1:], rows[0].line)
