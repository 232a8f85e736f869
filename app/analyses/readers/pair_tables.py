"""Tables whose rows are paths: two columns of ends, or one that names both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.numbers import bad_side, is_missing, label, number, positive
from app.analyses.readers.table import Row, Table
from app.analyses.readers.units import check_units, factors
from app.analyses.records import Bad, Label, PairList

_KINDS = r"(rank|gpu|node|host|pair)?[ _]?"
_A = rf"^{_KINDS}(a|i|1|src|source|from|sender)([ _]?(rank|gpu|node|host))?$"
_B = rf"^{_KINDS}(b|j|2|dst|dest|destination|to|receiver)([ _]?(rank|gpu|node|host))?$"
_BOTH = r"^(pair|path|link|nodes|hosts|gpus|ranks|edge)$"
_NUMBERED = r"^(rank|gpu|node|host)?[ _]?\d+$"
#: Looked for in this order, since names hold hyphens.
_BETWEEN = ("<->", "->", "→", "↔", "+", "|", ",", " ", "-")


def is_pairs(table: Table) -> bool:
    """Whether rows are paths; columns numbered 1, 2, 3, ... are ranks, not ends."""
    if len(table.columns(_NUMBERED)) > 2:
        return False
    return _two(table) or _between(table) is not None


def _two(table: Table) -> bool:
    return table.column(_A) is not None and table.column(_B) is not None


def _between(table: Table) -> tuple[int, str] | None:
    """The column that names both ends, and what stands between them in each of its cells."""
    column = table.column(_BOTH)
    if column is None or not table.rows:
        return None
    names = [row.cells[column] for row in table.rows]
    for mark in _BETWEEN:
        if all(len(ends := name.split(mark)) == 2 and all(map(str.strip, ends)) for name in names):
            return column, mark
    return None


def read_pairs(table: Table) -> PairList:
    """Paths with their values, tags and references.

    Raises
    ------
    UnreadableInput
        For a path to itself, a value that is none, and units that are missing or mixed.
    """
    column = _value_column(table)
    tags_column, fixed = table.column(r"^tags?$"), table.column(r"after_fix|reference")
    side: Bad | None = None
    pairs, tags, reference = [], defaultdict(set), {}
    for row, factor in zip(table.rows, _factors(table, column), strict=True):
        place = at_line(row.line)
        ends = _ends(table, row)
        stated = _side(table, row, column)
        if side is not None and stated != side:
            raise UnreadableInput("mixed_units", "rows measure different things", place)
        side = stated
        pairs.append((*ends, factor * positive(number(row.cells[column], place), place)))
        for tag in row.cells[tags_column].split() if tags_column is not None else ():
            tags[tag].add(ends)
        if fixed is not None and not is_missing(row.cells[fixed]):
            reference[ends] = factor * positive(number(row.cells[fixed], place), place)
    if side is None:
        raise UnreadableInput("unknown_format", "the table has no rows", at_line(table.line))
    tagged = {tag: frozenset(ends) for tag, ends in tags.items()}
    return PairList(pairs, side, tags=tagged, reference=reference or None)


def _factors(table: Table, column: int) -> list[float]:
    """What each row's value is to be multiplied by where a column states their units."""
    unit = table.column(r"^units?$")
    check_units(((row.cells[column], at_line(row.line)) for row in table.rows), table.header[column])
    if unit is None:
        return [1.0] * len(table.rows)
    return factors([(row.cells[unit], at_line(row.line)) for row in table.rows])


def _ends(table: Table, row: Row) -> tuple[Label, Label]:
    ends: Sequence[str]
    if _two(table):
        ends = [row.cells[i] for pattern in (_A, _B) if (i := table.column(pattern)) is not None]
    else:
        both = _between(table)
        assert both is not None
        ends = row.cells[both[0]].split(both[1])
    a, b = label(ends[0]), label(ends[1])
    if a == b:
        raise UnreadableInput("bad_pair", f"{a} is paired with itself", at_line(row.line))
    return a, b


def _side(table: Table, row: Row, column: int) -> Bad:
    """Which values are bad: as the row's unit says, as its header says where it has none."""
    unit, header = table.column(r"^units?$"), bad_side(table.header[column].replace("_", " "))
    stated = bad_side(row.cells[unit]) if unit is not None else header
    if stated is None:
        text = "the unit must be stated, in a column or in the header"
        raise UnreadableInput("unit_missing", text, at_line(row.line))
    if header is not None and stated != header:
        raise UnreadableInput("mixed_units", "rows measure different things", at_line(row.line))
    return stated


def _value_column(table: Table) -> int:
    taken = {table.column(_A), table.column(_B)} if _two(table) else {table.column(_BOTH)}
    named = table.columns(r"^value$|bw|bandwidth|latency|gb.?/?s|time|^(us|ms|ns|s)$")
    left = [i for i in named if i not in taken]
    if not left:
        text = "no column of values: name it value, with a unit"
        raise UnreadableInput("unknown_format", text, at_line(table.line))
    # What a path carries is what its name promises, where other times of the run stand beside it.
    return next((i for i in left if bad_side(table.header[i].replace("_", " ")) == "low"), left[0])
