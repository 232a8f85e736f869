"""What a table holds: a matrix, pairs, values a rank, ports, or errors by run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.classes import hosts_of, nic_classes
from app.analyses.readers.lines import cells
from app.analyses.readers.matrix_cells import MAX_RANKS, check_values
from app.analyses.readers.normalised_ports import read_states
from app.analyses.readers.numbers import WAIT, bad_side, is_missing, label, number, positive
from app.analyses.readers.table import Row, Table, as_table, read_rows
from app.analyses.records import (
    Bad,
    ErrorCounts,
    Label,
    MatrixSet,
    PairList,
    PathMatrix,
    PerRank,
    Reading,
    Record,
    Scenarios,
    Totals,
    Unjudged,
)

_RANK = r"^(global[ _]?)?(rank|gpu|node|host|worker|device|nic|name|id)([ _]?id)?$"
_PAIR_A, _PAIR_B = (
    r"^(rank|gpu|node|host)?_?(a|src|source|from|1)(_?(rank|gpu|node|host))?$",
    (r"^(rank|gpu|node|host)?_?(b|dst|dest|destination|to|2)(_?(rank|gpu|node|host))?$"),
)
_CLASS = r"^(pp|stage|pipeline[ _]?stage|tier|class)$"
_COORDINATES = r"^(stage|dp(_rank)?|tp(_rank)?|pp(_rank)?)$"
_OWN_WORK = r"compute|gemm|forward|backward|own|work|step|kernel|optimizer|input"
_NOT_A_VALUE = r"start|stamp|seed|count|bytes$|^dp|after_fix|version|date"


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
    table = as_table(rows)
    name, record = _recognised(table)
    return Reading(name, record)


def _recognised(table: Table) -> tuple[str, Record]:
    """What the columns say that it is."""
    nic = table.column(r"nic$|^port$|^device$")
    if table.column(_PAIR_A) is not None and table.column(_PAIR_B) is not None:
        return "pairs-csv", _pairs(table)
    if nic is not None and table.column(r"^state$") is not None:
        rows = {row.cells[nic]: dict(zip(table.header, row.cells, strict=True)) for row in _once(table, nic)}
        return "ports-csv", read_states(rows)
    if nic is not None and table.column(r"fail|error") is not None:
        return "nic-errors-csv", _errors(table, nic)
    if table.column(_RANK) is None and table.column(_COORDINATES) is None:
        if table.column(r"^pattern$") is not None:
            return "totals-table", _totals(table)
        text = "the table has no column rank (or gpu, node, host, nic), so no row of it is a component"
        return "table", Unjudged("unsupported_kind", text)
    return "per-rank-table", _per_rank(table)


def _is_matrix(rows: Sequence[Row]) -> bool:
    """Numbers only, or a header that names the rows again."""
    return _is_labelled(rows) or not any(_has_words(row.cells) for row in rows)


def _is_labelled(rows: Sequence[Row]) -> bool:
    corner, *cells_of_header = rows[0].cells
    columns = [label(cell) for cell in cells_of_header]
    if len(columns) < 2 or columns != [label(row.cells[0]) for row in rows[1:]]:
        return False
    # The first row of a symmetric matrix without labels is its first column, too.
    counted = columns in (list(range(len(columns))), list(range(1, len(columns) + 1)))
    return _has_words([corner]) or (corner == "" and (counted or _has_words(cells_of_header)))


def _has_words(words: Sequence[str]) -> bool:
    return any(
        not re.match(r"^[+-]?[\d.]|^nan$|^[+-]?inf", word.lower()) and not is_missing(word) for word in words
    )


def _matrix(rows: Sequence[Row], side: Bad | None) -> Reading:
    labelled = _is_labelled(rows)
    body = rows[1:] if labelled else rows
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
    bad = side or bad_side(rows[0].cells[0] if labelled else "")
    if bad is None:
        text = "a bare matrix does not say what it measures; say --kind latency-matrix or bandwidth-matrix"
        raise UnreadableInput("unit_missing", text, at_line(rows[0].line))
    check_values(values, "matrix", wait=False)
    return Reading("matrix-csv", MatrixSet([PathMatrix(names, values, bad)]))


def _pairs(table: Table) -> PairList:
    a, b = table.column(_PAIR_A), table.column(_PAIR_B)
    column = _value_column(table, {a, b})
    assert a is not None and b is not None
    unit_column, tags_column, fixed = (
        table.column(r"^unit$"),
        table.column(r"^tags?$"),
        table.column(r"after_fix|reference"),
    )
    side = bad_side(table.header[column].replace("_", " "))
    pairs, tags, reference = [], defaultdict(set), {}
    for row in table.rows:
        place = at_line(row.line)
        ends = label(row.cells[a]), label(row.cells[b])
        if ends[0] == ends[1]:
            raise UnreadableInput("bad_pair", f"{ends[0]} is paired with itself", place)
        stated = bad_side(row.cells[unit_column]) if unit_column is not None else side
        if stated is None:
            raise UnreadableInput("unit_missing", "the unit must be stated, in a column or in the header", place)
        if side is not None and stated != side:
            raise UnreadableInput("mixed_units", "rows measure different things", place)
        side = stated
        pairs.append((*ends, positive(number(row.cells[column], place), place)))
        for tag in row.cells[tags_column].split() if tags_column is not None else ():
            tags[tag].add(ends)
        if fixed is not None and not is_missing(row.cells[fixed]):
            reference[ends] = positive(number(row.cells[fixed], place), place)
    if side is None:
        raise UnreadableInput("unknown_format", "the table has no rows", at_line(table.line))
    return PairList(
        pairs, side, tags={tag: frozenset(ends) for tag, ends in tags.items()}, reference=reference or None
    )


def _value_column(table: Table, taken: set[int | None]) -> int:
    named = [
        i for i in table.columns(r"^value$|bw|bandwidth|latency|gb.?/?s|time|^(us|ms|ns|s)$") if i not in taken
    ]
    if not named:
        raise UnreadableInput(
            "unknown_format", "no column of values: name it value, with a unit", at_line(table.line)
        )
    return named[0]


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
    runs: dict[str, dict[Label, float]] = defaultdict(dict)
    peers: dict[str, str | None] = {}
    for row in table.rows:
        name = row.cells[run] if run is not None else ""
        runs[name][label(row.cells[nic])] = number(row.cells[count], at_line(row.line))
        peers[name] = row.cells[peer] if peer is not None else None
    return ErrorCounts(list(runs.values()), list(peers.values()))


def _totals(table: Table) -> Record:
    metrics = [i for i, name in enumerate(table.header) if re.search(r"write|read|total|gb", name, re.IGNORECASE)]
    return Totals(
        [{table.header[i]: number(row.cells[i], at_line(row.line)) for i in metrics} for row in table.rows]
    )


def _per_rank(table: Table) -> Record:
    scenario = table.column(r"^(scenario|condition|run|case)$")
    if scenario is not None:
        return _scenarios(table, scenario)
    names = _names(table)
    stage = table.column(_CLASS)
    classes = (
        [{name: row.cells[stage] for name, row in zip(names, table.rows, strict=True)}]
        if stage is not None
        else []
    )
    columns, metric = _metric(table)
    side = bad_side(metric.replace("_", " "))
    if side is None:
        raise UnreadableInput(
            "unit_missing", f"column {metric!r} has no unit (s, ms, us, GB/s)", at_line(table.line)
        )
    values = {}
    for name, row in zip(names, table.rows, strict=True):
        known = [number(row.cells[i], at_line(row.line, i + 1)) for i in columns if not is_missing(row.cells[i])]
        if known:
            values[name] = float(np.median(known))
    classes += nic_classes(list(values))
    hosts = hosts_of(list(values), {})
    return PerRank(values, side, bool(WAIT.search(metric)), classes, hosts, metric)


def _names(table: Table) -> list[Label]:
    column = table.column(_RANK)
    if column is not None:
        names = [label(row.cells[column]) for row in table.rows]
    else:
        keys = table.columns(_COORDINATES)
        names = [" ".join(f"{table.header[k]} {row.cells[k]}" for k in keys) for row in table.rows]
    seen: set[Label] = set()
    for name, row in zip(names, table.rows, strict=True):
        if name in seen:
            raise UnreadableInput("named_twice", f"{name} stands there twice", at_line(row.line))
        seen.add(name)
    return names


def _metric(table: Table) -> tuple[list[int], str]:
    """Columns to judge: repeated steps together, else the rank's own work, else the only timed column."""
    steps = table.columns(r"^step[ _]?\d+$")
    if len(steps) > 1:
        return steps, "step time"
    skip = {*table.columns(_NOT_A_VALUE), *table.columns(_RANK), *table.columns(_CLASS), *table.columns(r"_rank$")}
    timed = [
        i for i, name in enumerate(table.header) if i not in skip and bad_side(name.replace("_", " ")) is not None
    ]
    own = [
        i
        for i in timed
        if re.search(_OWN_WORK, table.header[i], re.IGNORECASE) and not WAIT.search(table.header[i])
    ]
    chosen = own or timed
    if not chosen:
        raise UnreadableInput(
            "unit_missing", "no column of values names its unit (s, ms, us, GB/s)", at_line(table.line)
        )
    return [chosen[0]], table.header[chosen[0]]


def _scenarios(table: Table, scenario: int) -> Scenarios:
    rank, metric = table.column(_RANK), table.column(r"^metric$")
    taken = {scenario, rank, metric}
    value = next((i for i in range(len(table.header)) if i not in taken and bad_side(table.header[i])), None)
    if rank is None or value is None:
        raise UnreadableInput(
            "unknown_format", "conditions need columns rank and a value with its unit", at_line(table.line)
        )
    side = bad_side(table.header[value])
    assert side is not None
    runs: dict[tuple[str, str], dict[Label, float]] = defaultdict(dict)
    for row in table.rows:
        key = row.cells[scenario], row.cells[metric] if metric is not None else ""
        name = label(row.cells[rank])
        if name in runs[key]:
            raise UnreadableInput(
                "named_twice", f"{name} stands there twice for {' '.join(key)}", at_line(row.line)
            )
        runs[key][name] = number(row.cells[value], at_line(row.line))
    records = [
        (
            f"{key[0]} {key[1]}".strip(),
            PerRank(values, side, bool(WAIT.search(key[1])), metric=f"{key[0]} {key[1]}"),
        )
        for key, values in runs.items()
    ]
    return Scenarios(records, own_work=not any(WAIT.search(key[1]) for key in runs))
