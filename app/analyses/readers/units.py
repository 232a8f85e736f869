"""Units beside numbers: what they are worth, and that those of one column are one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from app.analyses.errors import UnreadableInput

_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_PREFIXES = {"k": 1, "m": 2, "g": 3, "t": 4}
_RATE = re.compile(r"([kmgt])(i?)(b|bits?)(/s|ps|/sec)?", re.IGNORECASE)
_BEHIND = re.compile(r"[\d.]\s*([KMGT]i?[Bb](?:it)?(?:ps|/s)?|[nuµμm]?s)$")
_NAMED = re.compile(r"(?<![A-Za-z])(?:[nuµμm]s(?![A-Za-z])|[KMGTkmgt]i?[Bb](?:it)?(?:ps|/s))")


def worth(unit: str) -> float | None:
    """Seconds, or bytes a second, of one such unit; None where that is unknown or open, as in ``gb/s``."""
    plain = unit.strip()
    if plain.lower() in _TIMES:
        return _TIMES[plain.lower()]
    match = _RATE.fullmatch(plain)
    if match is None:
        return None
    prefix, binary, what, per = match.groups()
    if plain.islower() and what == "b" and per != "ps":
        return None
    size = (1024.0 if binary else 1000.0) ** _PREFIXES[prefix.lower()]
    return size if what == "B" else size / 8


def factors(units: Sequence[tuple[str, str]]) -> list[float]:
    """What values with these units (each with its place) are to be multiplied by, to be comparable.

    Raises
    ------
    UnreadableInput
        Where units differ and one of them is not known.
    """
    if len({unit for unit, _ in units}) < 2:
        return [1.0] * len(units)
    known = [worth(unit) for unit, _ in units]
    for (unit, place), value in zip(units, known, strict=True):
        if value is None:
            text = f"units differ, and what {unit!r} is in the others is not known; use one unit"
            raise UnreadableInput("mixed_units", text, place)
    return [value for value in known if value is not None]


def check_units(cells: Iterable[tuple[str, str]], stated: str) -> None:
    """Cells of one column (each with its place) carry the unit that its header states, one unit, or none.

    Raises
    ------
    UnreadableInput
        For the first cell with another unit.
    """
    named = _NAMED.search(stated)
    first = named[0] if named else None
    for text, place in cells:
        match = _BEHIND.search(text.strip().strip("*`"))
        if match is None:
            continue
        if first is not None and not _same(first, match[1]):
            raise UnreadableInput("mixed_units", f"{text.strip()!r} among values in {first}; use one unit", place)
        first = first or match[1]


def _same(one: str, two: str) -> bool:
    a, b = (unit.replace("ps", "/s").removesuffix("/s").replace("bit", "b") for unit in (one, two))
    a, b = (unit.replace("µ", "u").replace("μ", "u") for unit in (a, b))
    if a.lower() != b.lower():
        return False
    # "gb/s" may mean either; GB/s and Gb/s do not.
    return a[-1] == b[-1] or one.islower() or two.islower()
