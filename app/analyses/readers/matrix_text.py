"""Matrices as programs print them: DeepXTrace rows, ``p2pBandwidthLatencyTest``, ``nvbandwidth``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.lines import Line, cells, split_lines
from app.analyses.readers.matrix_cells import MAX_RANKS, check_values
from app.analyses.readers.numbers import bad_side
from app.analyses.records import Bad, Label, Matrix, MatrixSet, PathMatrix, PerRank, Reading, Reason

_DEEPXTRACE = re.compile(r"rank\s*=\s*(\d{1,6})\s*\[([^\]]*)(\])?")
_WAITS = re.compile(r"diagnose|wait|recv cost", re.IGNORECASE)
_HEADER = re.compile(r"^\s*((?:D\\+D|GPU|CPU|Src->|src->|Src\\Dst)\s+)?((?:GPU\s*)?\d+(\s+(?:GPU\s*)?\d+)+)\s*$")
_ROW = re.compile(r"^\s*(?:GPU\s*)?(\d{1,4})\s*:?\s+(\S.*)$")
_CELL = re.compile(r"^(?:[+-]?[\d.,]+(?:[eE][+-]?\d+)?|N/A|n/a|-|–|—|X|nan|NaN|[+-]?inf)$")


def is_deepxtrace(lines: Sequence[Line]) -> bool:
    """Whether rows look like ``rank=0 [1 2 3]``, or like ``[1 2 3]`` below a line that speaks of waits."""
    if any(_DEEPXTRACE.search(line.text) for line in lines[:50]):
        return True
    return any(_WAITS.search(line.text) for line in lines[:50]) and len(_bare_rows(lines)) > 2


def _bare_rows(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    """Rows in brackets that do not name their rank."""
    texts = [(line, line.text.strip()) for line in lines]
    return [
        (line, text[1:-1])
        for line, text in texts
        if text[:1] == "[" and text[-1:] == "]" and not set(text[1:-1]) - set("0123456789. ,\t")
    ]


def read_deepxtrace(text: str) -> Reading:
    """Read ``rank=i [...]`` rows: row = reporting rank, column = the peer that it waited for.

    Rows that name no rank count up from 0.

    Raises
    ------
    UnreadableInput
        For a row that is cut, of another length, or there twice.
    """
    rows: dict[int, tuple[int, list[float]]] = {}
    lines = split_lines(text)
    cut = 0
    for line in lines:
        for match in _DEEPXTRACE.finditer(line.text):
            rank = int(match[1])
            if match[3] is None and line is lines[-1] and len(rows) > 2:
                cut = line.number
                continue
            if match[3] is None:
                raise UnreadableInput(
                    "truncated", f"the row of rank {rank} has no closing bracket", at_line(line.number)
                )
            if rank in rows:
                text = f"rank {rank} stands in line {rows[rank][0]} already; give one snapshot"
                raise UnreadableInput("named_twice", text, at_line(line.number))
            rows[rank] = line.number, cells(match[2].replace(",", " ").split(), line.number)
    if not rows:
        rows = {
            i: (line.number, cells(row.replace(",", " ").split(), line.number))
            for i, (line, row) in enumerate(_bare_rows(lines))
        }
    if not rows:
        raise UnreadableInput("no_values", "no row such as rank=0 [1 2 3] was found", at_line(lines[0].number))
    matrix, notes = _square(_Block("deepxtrace waits", 1, rows, None, cut))
    check_values(matrix, "rank rows", wait=True)
    record = MatrixSet([PathMatrix(list(range(len(matrix))), matrix, "high", title="waits", wait=True)])
    return Reading("deepxtrace", record, notes)


@dataclass(slots=True)
class _Block:
    """Rows by rank, each with its line; ``cut`` is the last line of the text where it ends within a row."""

    title: str
    line: int
    rows: dict[int, tuple[int, list[float]]] = field(default_factory=dict)
    header: list[int] | None = None
    cut: int = 0


def has_blocks(lines: Sequence[Line]) -> bool:
    """Whether there is a row of column numbers, or rows that count up and hold numbers."""
    numbered = [line for line in lines[:2000] if _row(line) is not None]
    return any(_HEADER.match(line.text) for line in lines[:2000]) or len(numbered) >= 3


def read_blocks(text: str, side: Bad | None = None) -> Reading:
    """Read the matrices of a ``p2pBandwidthLatencyTest`` or ``nvbandwidth`` paste.

    Parameters
    ----------
    side : {"high", "low"} or None
        Which values of matrices without a title are bad, when the caller names it.

    Raises
    ------
    UnreadableInput
        When none of them can be used, or one is ragged.
    """
    lines = split_lines(text)
    blocks = _blocks(lines)
    newer = any("nvbandwidth" in line.text.lower() or "memcpy" in line.text for line in lines)
    single = [block for block in blocks if _is_single(block)]
    lists = [_list(block, bad) for block in single if (bad := bad_side(block.title)) is not None]
    chosen, notes = (
        _choose([block for block in blocks if block not in single], side)
        if len(single) < len(blocks)
        else ([], [])
    )
    matrices = []
    for block in chosen:
        values, missing = _square(block)
        bad = bad_side(block.title) or side
        assert bad is not None
        check_values(values, f"the matrix at line {block.line}", wait=False)
        title = f"{_short(block.title)} (line {block.line})"
        matrices.append(
            PathMatrix(
                list(range(len(values))),
                values,
                bad,
                one_host=True,
                title=title,
                in_gb="GB/s" in block.title,
                over_host=_peer(block) == "disabled",
            )
        )
        notes += missing
    return Reading("nvbandwidth" if newer else "p2pBandwidthLatencyTest", MatrixSet(matrices, lists), notes)


def _is_single(block: _Block) -> bool:
    """One row for the columns of a header: what each GPU exchanges with the host."""
    row = block.rows.get(0)
    return (
        len(block.rows) == 1 and row is not None and block.header == list(range(len(row[1]))) and len(row[1]) > 2
    )


def _list(block: _Block, bad: Bad) -> PerRank:
    (_, row), *_ = block.rows.values()
    values: dict[Label, float] = {i: value for i, value in enumerate(row) if np.isfinite(value)}
    return PerRank(values, bad, metric=f"{_short(block.title)} (line {block.line})")


def _short(title: str) -> str:
    return " ".join(title.split())[:60]


def _row(line: Line) -> tuple[int, list[str]] | None:
    # Without blanks at the end the pattern has one way to divide those in the middle.
    match = _ROW.match(line.text.rstrip())
    if match is None:
        return None
    words = match[2].split()
    return (int(match[1]), words) if len(words) >= 2 and all(map(_CELL.match, words)) else None


def _blocks(lines: Sequence[Line]) -> list[_Block]:
    """A block begins at a header, or where rows begin without one; its title is the last other line above."""
    blocks: list[_Block] = []
    title = Line(0, "")
    current: _Block | None = None
    for line in lines:
        header = _header(line, current)
        row = None if header else _row(line)
        if header:
            numbers = [int(n) for n in re.findall(r"\d+", header[2])]
            current = _Block(f"{title.text} {header[1] or ''}", line.number, {}, numbers)
            blocks.append(current)
        elif row is not None:
            if current is None:
                current = _Block(title.text, line.number)
                blocks.append(current)
            rank, words = row
            if rank in current.rows:
                text = f"row {rank} stands in line {current.rows[rank][0]} already"
                raise UnreadableInput("named_twice", text, at_line(line.number))
            current.rows[rank] = line.number, cells(words, line.number, 2)
        elif not re.fullmatch(r"[\s=+|-]+", line.text):
            if current is not None and _looks_like_row(line, current):
                text = f"{line.text.strip()[:40]!r} is neither a row nor a title"
                raise UnreadableInput("bad_number", text, at_line(line.number))
            title, current = line, None
    if current is not None and current.header and len(current.rows) > 2:
        last, row_cells = current.rows[max(current.rows)]
        if last == lines[-1].number and len(row_cells) < len(current.header):
            current.cut = last
    return [block for block in blocks if block.rows]


def _header(line: Line, block: _Block | None) -> re.Match[str] | None:
    """A row of column numbers; a row of a matrix of whole numbers looks alike, but for what it counts."""
    match = _HEADER.match(line.text)
    if match is None or match[1]:
        return match
    numbers = [int(n) for n in match[2].split() if n.isdigit()]
    if block is not None and block.header and not block.rows and len(numbers) == len(block.header) + 1:
        return None
    return match if numbers == list(range(len(numbers))) or "GPU" in match[2] else None


def _looks_like_row(line: Line, block: _Block) -> bool:
    """A damaged row: it begins as the next row would and is mostly numbers."""
    words = line.words
    numeric = sum(bool(_CELL.match(word)) for word in words)
    return words[0].rstrip(":") == str(max(block.rows, default=-1) + 1) and numeric >= len(words) / 2


def _choose(blocks: Sequence[_Block], side: Bad | None) -> tuple[list[_Block], list[Reason]]:
    """Matrices of a known direction; not those over the host where peer access is on, nor times of the CPU."""
    if not blocks:
        raise UnreadableInput("unknown_format", "no matrix was found in the text")
    notes: list[Reason] = []
    known = [block for block in blocks if (bad_side(block.title) or side) is not None]
    if not known:
        text = "the matrix has no title with a unit (GB/s, us): name the kind latency-matrix or bandwidth-matrix"
        raise UnreadableInput("unit_missing", text, at_line(blocks[0].line))
    enabled = any(_peer(block) == "enabled" for block in known)
    # Some programs print a test as one row, beside those that they print as matrices.
    least = 2 if any(len(block.rows) > 1 for block in known) else 1
    chosen = []
    for block in known:
        if re.search(r"\bCPU\b|\bhost\b", block.title, re.IGNORECASE) or len(block.rows) < least:
            continue
        if _peer(block) == "disabled" and enabled:
            continue
        chosen.append(block)
    left = len(blocks) - len(chosen)
    if not chosen:
        chosen = known[:1]
    if left:
        text = f"{left} of {len(blocks)} matrices were not judged: no title, over the host, or times of the CPU"
        notes.append(Reason("matrices_left_out", text))
    return chosen, notes


def _peer(block: _Block) -> str:
    match = re.search(r"P2P\s*=\s*(Enabled|Disabled)", block.title, re.IGNORECASE)
    return match[1].lower() if match else ""


def _square(block: _Block) -> tuple[Matrix, list[Reason]]:
    """The rows as a matrix; whole rows may be missing at the end of a paste, parts of rows may not."""
    rows = {rank: row for rank, row in block.rows.items() if row[0] != block.cut}
    widths = [len(row) for _, row in rows.values()]
    n = len(block.header) if block.header else max([*widths, max(rows) + 1])
    if n < 2:
        raise UnreadableInput("too_few", "a matrix of one rank has no path", at_line(block.line))
    if n > MAX_RANKS:
        raise UnreadableInput("too_large", f"{n} ranks; at most {MAX_RANKS} are analysed", at_line(block.line))
    if block.header and block.header != list(range(n)):
        raise UnreadableInput("bad_header", "columns must count 0, 1, 2, ...", at_line(block.line))
    for rank, (line, row) in rows.items():
        if rank >= n:
            raise UnreadableInput("ragged_matrix", f"row {rank} of a matrix with {n} columns", at_line(line))
        if len(row) != n:
            raise UnreadableInput("ragged_matrix", f"row {rank} has {len(row)} cells, {n} expected", at_line(line))
    if len(rows) < max(2, n - max(1, n // 4)):
        last = max(line for line, _ in rows.values())
        raise UnreadableInput("truncated", f"{len(rows)} of {n} rows are there", at_line(last))
    values = np.full((n, n), np.nan)
    for rank, (_, row) in rows.items():
        values[rank] = row
    missing = sorted(set(range(n)) - rows.keys())
    notes = (
        [Reason("rows_missing", f"no row for {', '.join(map(str, missing))}: judged without")] if missing else []
    )
    if block.cut:
        notes.append(Reason("row_cut", f"the text ends within line {block.cut}: judged without that row"))
    return values, notes
