"""What a table holds: a matrix, pairs, values a rank, ports, or errors by run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.lines import cells
from app.analyses.readers.matrix_cells import MAX_RANKS, check_values
from app.analyses.readers.numbers import bad_side, is_missing, is_summary, label, number
from app.analyses.readers.pair_tables import is_pairs, read_pairs
from app.analyses.readers.per_rank_tables import is_per_rank, read_per_rank, read_wide
from app.analyses.readers.port_states import read_states
from app.analyses.readers.table import Row, Table, as_table, read_rows
from app.analyses.readers.units import check_units
from app.analyses.records import (
    Bad,
    ErrorCounts,
    Label,
    MatrixSet,
    PathMatrix,
    Reading,
    Reason,
    Record,
    Totals,
    Unjudged,
)

_NUMBERED = r"^(rank|gpu|node|host)?[ _]?\d+$"


def read_table(text: str, side: Bad | None = None) -> Reading:
    """Read a table and find out what it holds.

    Parameters
    ----------
    side : {"high", "low"} or None
        Which values are bad, for a bare matrix, when the caller names it.

    Raises
    ------
    UnreadableInput
        When it is ragged, has no unit, or holds nothing that is known.
    """
    rows, title = read_rows(text)
    if len(rows) < 2:
        raise UnreadableInput("unknown_format", "a table needs a header and at least one row")
    if _is_matrix(rows):
        return _matrix(rows, side or bad_side(title))
    trimmed = _without_summaries(rows)
    if len(trimmed) > 2 and _is_labelled(trimmed):
        note = Reason("summaries_left_out", "the row or column that sums up the others is left out")
        return replace(_matrix(trimmed, side or bad_side(title)), notes=[note])
    return _recognised(as_table(rows))


def _without_summaries(rows: Sequence[Row]) -> list[Row]:
    """Rows of a matrix whose header and first column hold no total, average or the like."""
    kept = [i for i, name in enumerate(rows[0].cells) if i == 0 or not is_summary(label(name))]
    return [
        Row(row.line, [row.cells[i] for i in kept if i < len(row.cells)])
        for row in rows
        if row is rows[0] or not is_summary(label(row.cells[0]))
    ]


def _recognised(table: Table) -> Reading:
    """What the columns say that it is."""
    if (wide := read_wide(table)) is not None:
        return Reading("per-step-table", wide)
    if is_pairs(table):
        return Reading("pairs-csv", read_pairs(table))
    if len(table.columns(_NUMBERED)) > 2:
        raise _no_square(table)
    if (ports := _ports(table)) is not None:
        return ports
    if is_per_rank(table):
        record, notes = read_per_rank(table)
        return Reading("per-rank-table", record, notes)
    if table.column(r"^pattern$") is not None:
        return Reading("totals-table", _totals(table))
    text = "the table has no column rank (or gpu, node, host, nic), so no row of it is a component"
    return Reading("table", Unjudged("unsupported_kind", text))


def _ports(table: Table) -> Reading | None:
    """States or errors of ports; None where the table holds neither."""
    nic = table.column(r"nic$|^port$|^device$")
    if nic is not None and table.column(r"^state$") is not None:
        rows = {row.cells[nic]: dict(zip(table.header, row.cells, strict=True)) for row in _once(table, nic)}
        return Reading("ports-csv", read_states(rows))
    if nic is not None and table.column(r"fail|error") is not None:
        return Reading("nic-errors-csv", _errors(table, nic))
    return None


def _no_square(table: Table) -> UnreadableInput:
    """The header names ranks, as a matrix's does; the rows do not name the same ones."""
    rows = [row.cells[0] for row in table.rows]
    missing = [name for name in table.header[1:] if name not in rows]
    text = f"the header names {len(table.header) - 1} ranks and there are {len(rows)} rows"
    if missing:
        text += f"; no row is of {', '.join(missing[:5])}"
    return UnreadableInput("ragged_matrix", text, at_line(table.line))


def _is_matrix(rows: Sequence[Row]) -> bool:
    """Numbers only, or a header that names the rows again."""
    return _is_labelled(rows) or not any(_has_words(row.cells) for row in rows)


def _is_labelled(rows: Sequence[Row]) -> bool:
    corner, *cells_of_header = rows[0].cells
    columns = [label(cell) for cell in cells_of_header]
    names = [label(row.cells[0]) for row in rows[1:]]
    if len(columns) < 2 or len(names) != len(columns) or set(columns) != set(names):
        return False
    # The first row of a symmetric matrix without labels is its first column, too.
    counted = columns in (list(range(len(columns))), list(range(1, len(columns) + 1)))
    return _has_words([corner]) or (corner == "" and (counted or _has_words(cells_of_header)))


def _unit(cells_of_matrix: Sequence[tuple[str, str]]) -> str:
    """The first cell that has letters behind its number."""
    return next((text for text, _ in cells_of_matrix if re.match(r"\W*[\d.]+\s*[^\W\d]", text)), "")


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows of a matrix in the order of its columns; those that stand there twice stay."""
    order = {label(name): i for i, name in enumerate(rows[0].cells[1:])}
    return sorted(rows[1:], key=lambda row: order[label(row.cells[0])])


def _has_words(words: Sequence[str]) -> bool:
    return any(
        not re.match(r"^[+-]?[\d.]|^nan$|^[+-]?inf", word.lower()) and not is_missing(word) for word in words
    )


def _matrix(rows: Sequence[Row], side: Bad | None) -> Reading:
    labelled = _is_labelled(rows)
    body = _in_order(rows) if labelled else rows
    names = [label(row.cells[0]) for row in body] if labelled else list(range(len(body)))
    if len(set(names)) < len(names):
        raise UnreadableInput("named_twice", "a rank has two rows", at_line(rows[0].line))
    n = len(body)
    if n > MAX_RANKS:
        raise UnreadableInput("too_large", f"{n} ranks; at most {MAX_RANKS} are analysed", at_line(rows[0].line))
    values = np.full((n, n), np.nan)
    for i, row in enumerate(body):
        words = list(row.cells[1:] if labelled else row.cells)
        if len(words) != n:
            raise UnreadableInput("ragged_matrix", f"has {len(words)} values, {n} expected", at_line(row.line))
        values[i] = cells(words, row.line, 1 + labelled)
    inner = [(cell, at_line(row.line)) for row in body for cell in row.cells[1 if labelled else 0 :]]
    check_units(inner, rows[0].cells[0] if labelled else "")
    bad = side or bad_side(rows[0].cells[0] if labelled else "") or bad_side(_unit(inner))
    if bad is None:
        text = "a bare matrix does not say what it measures; say --kind latency-matrix or bandwidth-matrix"
        raise UnreadableInput("unit_missing", text, at_line(rows[0].line))
    check_values(values, "matrix", wait=False)
    return Reading("matrix-csv", MatrixSet([PathMatrix(names, values, bad)]))


def _once(table: Table, column: int) -> Sequence[Row]:
    seen: dict[str, int] = {}
    for row in table.rows:
        name = row.cells[column]
        if name in seen:
            raise UnreadableInput(
                "named_twice", f"{name!r} stands in line {seen[name]} already", at_line(row.line)
            )
        seen[name] = row.line
    return table.rows


def _errors(table: Table, nic: int) -> ErrorCounts:
    count, run, peer = table.columns(r"fail|error")[0], table.column(r"^run"), table.column(r"peer|remote")
    host = table.column(r"^(host|node|machine|server)([ _]?name)?$")
    runs: dict[str, dict[Label, float]] = defaultdict(dict)
    peers: dict[str, str | None] = {}
    for row in table.rows:
        name, place = row.cells[run] if run is not None else "", at_line(row.line)
        port = label(row.cells[nic]) if host is None else f"{row.cells[host]}:{row.cells[nic]}"
        if port in runs[name]:
            raise UnreadableInput("named_twice", f"{port} stands there twice", place)
        runs[name][port] = number(row.cells[count], place)
        peers[name] = row.cells[peer] if peer is not None else None
    return ErrorCounts(list(runs.values()), list(peers.values()))


def _totals(table: Table) -> Record:
    metrics = [i for i, name in enumerate(table.header) if re.search(r"write|read|total|gb", name, re.IGNORECASE)]
    return Totals(
        [{table.header[i]: number(row.cells[i], at_line(row.line)) for i in metrics} for row in table.rows]
    )
