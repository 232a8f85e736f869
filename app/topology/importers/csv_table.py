"""A table with one GPU a line; the header names the columns, in any order. Commas, semicolons or tabs part them.

``rank`` is needed, ``host`` too unless the caller names it. ``tier1`` is the switch above ``leaf``, ``tier2`` the
one above that, and so on. An empty cell states nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.localization.placement import PLACE_FIELDS
from app.topology.errors import ImportRefused
from app.topology.importers.draft import Draft

FIELDS = ("rank", *PLACE_FIELDS)
_TIER = re.compile(r"tier([1-9]\d?)")
_DELIMITERS = ",;\t"
_QUOTED = re.compile(r'"(?:[^"]|"")*+"')
_BREAK = re.compile(r"\r\n|\r|\n")


def has_header(text: str) -> bool:
    """Whether the first line that is not empty is a header."""
    try:
        _, cells = next(_rows(text), (1, []))
    except ImportRefused:
        return False
    names = _names(cells)
    return "rank" in names and len(names) > 1


def parse(text: str, host: str | None = None) -> Draft:
    """GPUs in the order of the lines.

    Parameters
    ----------
    text : str
        The table.
    host : str, optional
        Host of all GPUs, where the table has no such column.

    Raises
    ------
    ImportRefused
        A column that is unknown, missing or stands twice, a line of another length, a rank that is no number, or a
        switch under two others. Its column is the number of the cell.
    """
    rows = _rows(text)
    line, cells = next(rows, (1, []))
    names = _header(line, cells, host)
    gpus: list[dict[str, Any]] = []
    where: list[tuple[int, int]] = []
    tiers = _Tiers(names)
    for line, cells in rows:
        if len(cells) != len(names):
            at = min(len(cells), len(names)) + 1
            raise ImportRefused(f"{len(cells)} cells, the header has {len(names)}", line, at)
        row = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
        gpus.append(_gpu(row, names, line, host))
        where.append((line, 1))
        tiers.add(row, line)
    columns = {name: column for column, name in enumerate(names, 1)}
    return Draft(gpus, where, tiers.parents, columns=columns, switches=tiers.places)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line, and cells, of every row that is not empty."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    delimiter = _delimiter(first)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ImportRefused(f"not CSV: {error}", *(_broken(text, delimiter) or (line, 1))) from None


def _broken(text: str, delimiter: str) -> tuple[int, int] | None:
    """Line and cell of the first cell that `csv` cannot read: it does not say which."""
    plain, stops = re.compile(f"[^{delimiter}\r\n]*"), re.compile(f"{delimiter}|{_BREAK.pattern}|\\Z")
    line, cell, at = 1, 1, 0
    while at < len(text):
        found = (_QUOTED if text[at] == '"' else plain).match(text, at)
        if found is None or len(found.group()) > csv.field_size_limit():
            return line, cell
        stop = stops.match(text, found.end())
        if stop is None:
            return line, cell
        line += len(_BREAK.findall(found.group()))
        line, cell = (line, cell + 1) if stop.group() == delimiter else (line + 1, 1)
        at = stop.end()
    return None


def _delimiter(line: str) -> str:
    return max(_DELIMITERS, key=line.count)


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip().lower() for cell in cells]


def _header(line: int, cells: Sequence[str], host: str | None) -> list[str]:
    names = _names(cells)
    for column, name in enumerate(names, 1):
        if name not in FIELDS and _TIER.fullmatch(name) is None:
            raise ImportRefused(f"unknown column {name!r}; {', '.join(FIELDS)}, tier1, ... are", line, column)
        if name in names[: column - 1]:
            raise ImportRefused(f"column {name!r} stands twice", line, column)
    for needed in ("rank", *(() if host is not None else ("host",))):
        if needed not in names:
            raise ImportRefused(f"there is no column {needed!r}", line, 1)
    if host is not None and "host" in names:
        raise ImportRefused("the table names its hosts; leave the host out", line, names.index("host") + 1)
    tiers = _tiers(names)
    for number, name in enumerate(tiers, 1):
        if name != f"tier{number}" or "leaf" not in names:
            message = "tiers must be tier1, tier2, ... without gaps, above a column 'leaf'"
            raise ImportRefused(message, line, names.index(name) + 1)
    return names


def _tiers(names: Sequence[str]) -> list[str]:
    """Columns of the switches above the leaf, the lowest first."""
    return sorted((name for name in names if _TIER.fullmatch(name)), key=lambda name: int(name[4:]))


def _gpu(row: Mapping[str, str], names: Sequence[str], line: int, host: str | None) -> dict[str, Any]:
    rank = row["rank"]
    if not (rank.isascii() and rank.isdigit() and len(rank) <= 6):
        raise ImportRefused(f"rank {rank!r} is no number from 0", line, names.index("rank") + 1)
    if host is None and not row["host"]:
        raise ImportRefused("the host is empty", line, names.index("host") + 1)
    stated = {name: row[name] for name in PLACE_FIELDS if row.get(name)}
    return {"rank": int(rank), **({} if host is None else {"host": host}), **stated}


class _Tiers:
    """The switches above one another, as the rows say it, and where they do."""

    def __init__(self, names: Sequence[str]) -> None:
        self.parents: dict[str, str] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self._columns = [(name, names.index(name) + 1) for name in _tiers(names)]

    def add(self, row: Mapping[str, str], line: int) -> None:
        """Put the switches of a row above one another."""
        below = row.get("leaf", "")
        for tier, column in self._columns:
            above = row[tier]
            if above and not below:
                raise ImportRefused(f"{above!r} is above nothing: the tier below it is empty", line, column)
            if above and self.parents.setdefault(below, above) != above:
                message = f"switch {below!r} is under {above!r} here and under {self.parents[below]!r} before"
                raise ImportRefused(message, line, column)
            if above:
                self.places.setdefault(below, (line, column))
            below = above
