"""A path a line: ``a,b 49.4``, ``node0 <-> node1: 45 GB/s``, ``GPU 0 -> GPU 1  45 GB/s``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.lines import Line, split_lines
from app.analyses.readers.numbers import bad_side, label, number, positive
from app.analyses.records import Bad, Label, PairList, Reading, Unjudged

_NAME = r"((?:(?:gpu|rank|node|host)[ ])?[\w.-]*\w(?::[\w.-]*\w)*)"
#: Both ends; what follows is cut by hand, since each run of blanks in a pattern is one more place to start anew.
_ENDS = re.compile(rf"\s*{_NAME}\s*(?:<?[-=]{{1,2}}>|→|↔|,)\s*{_NAME}(?:\s*[:=]|\s)", re.IGNORECASE)
_VALUE = re.compile(r"([\d.,]+(?:e[+-]?\d+)?)\s*([a-zµμ%][\w/µμ%]*)?(?![^\s()])", re.IGNORECASE)
#: Comments on the value say nothing about the kind of path.
_VERDICT = re.compile(r"slow|fast|bad|low|high|fail|ok\b|good|[!?<>]", re.IGNORECASE)
#: Longer lines are of other formats.
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class _Path:
    """One line: the ends, the value and its unit as they stand there, and what is said about it."""

    ends: tuple[str, str]
    shown: str
    unit: str
    comment: str


def is_path(text: str) -> bool:
    """Whether a line names two ends and a value."""
    return _path(text) is not None


def read_pair_lines(text: str) -> Reading:
    """A path a line; without a unit nothing says which values are bad.

    Raises
    ------
    UnreadableInput
        For a line that is no path, a path to itself, a value that is none, and units that are mixed.
    """
    pairs: list[tuple[Label, Label, float]] = []
    tags: dict[str, set[tuple[Label, Label]]] = defaultdict(set)
    unit: str | None = None
    for line in split_lines(text):
        if line.text.lstrip().startswith("#"):
            continue
        path, place = _path(line.text), at_line(line.number)
        if path is None:
            raise UnreadableInput("bad_number", f"{line.text.strip()[:40]!r} is no pair and value", place)
        ends = label(path.ends[0]), label(path.ends[1])
        if ends[0] == ends[1]:
            raise UnreadableInput("bad_pair", f"{ends[0]} is paired with itself", place)
        if unit not in {None, path.unit}:
            text = f"{path.unit or 'no unit'} here and {unit or 'no unit'} before: use one unit"
            raise UnreadableInput("mixed_units", text, place)
        unit = path.unit
        pairs.append((*ends, positive(number(path.shown, place), place)))
        if path.comment and not _VERDICT.search(path.comment):
            tags[path.comment].add(ends)
    side = bad_side(unit or "")
    if side is None:
        text = "pairs without a unit: high or low values may be the bad ones; state a unit (GB/s, us)"
        return Reading("pairs-text", Unjudged("unit_missing", text))
    return Reading("pairs-text", _list(pairs, side, tags))


def starts_with_path(lines: Sequence[Line]) -> bool:
    """Whether the first line that is no comment names two ends and a value."""
    first = next((line.text for line in lines if not line.text.lstrip().startswith("#")), "")
    return is_path(first)


def _list(
    pairs: list[tuple[Label, Label, float]], side: Bad, tags: dict[str, set[tuple[Label, Label]]]
) -> PairList:
    if not pairs:
        raise UnreadableInput("no_values", "no line names two ends and a value")
    return PairList(pairs, side, tags={tag: frozenset(ends) for tag, ends in tags.items()})


def _path(text: str) -> _Path | None:
    if len(text) > _LONGEST or (ends := _ENDS.match(text)) is None:
        return None
    shown, _, comment = text[ends.end() :].partition("#")
    value = _VALUE.match(shown.strip())
    # A second number belongs to another measurement, or to a table.
    if value is None or re.search(r"\d", shown.strip()[value.end() :]):
        return None
    if shown.strip()[value.end() :].strip() and not value[2]:
        return None
    return _Path((ends[1], ends[2]), value[1], value[2] or "", " ".join(comment.split()))
