"""Fields of a normalised document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.analyses.errors import UnreadableInput
from app.analyses.readers.numbers import bad_side, checked, is_wait, label, number
from app.analyses.records import Bad, Label

_NUMBERED = re.compile(r"(rank|gpu|node|host|worker|engine|nic|device|dp|ep)?[ _-]?\d+", re.IGNORECASE)


class Shape(Exception):
    """Values of a well-formed document in a shape that is not judged."""


class Document:
    """A normalised document and the usual ways to read it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.kind = str(data.get("kind"))
        unit = data.get("unit")
        self.unit = unit if isinstance(unit, str) else ""

    def bad(self) -> Bad:
        """Which values are bad: as stated, else as the unit says.

        Raises
        ------
        UnreadableInput
            When neither says it.
        """
        stated = self.data.get("higher_is_worse")
        if isinstance(stated, bool):
            return "high" if stated else "low"
        if stated is not None:
            raise UnreadableInput("bad_field", "must be true, false or null", "higher_is_worse")
        side = bad_side(self.unit)
        if side is None:
            text = "the unit does not say whether high or low values are bad; state higher_is_worse"
            raise UnreadableInput("unit_missing", text, "unit")
        return side

    def is_wait(self) -> bool:
        """Whether the unit speaks of time spent waiting for others."""
        return is_wait(self.unit)

    def placement(self, names: Sequence[str]) -> dict[str, str]:
        """Host of each of some names that has one."""
        given = self.data.get("placement")
        if not isinstance(given, Mapping):
            return {}
        return {name: host for name in names if isinstance(host := given.get(name), str)}

    def flat_scalars(self) -> bool:
        """Whether the values are one number a name."""
        values = self.data.get("values")
        return isinstance(values, Mapping) and all(
            isinstance(value, int | float | list) and not isinstance(value, bool) for value in values.values()
        )


def scalar(value: object, place: str) -> float:
    """A number, or one in a text ("<5e-15", "1,541").

    Raises
    ------
    UnreadableInput
        When it is negative, not finite, or no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnreadableInput("bad_number", "must be a number", place)
    try:
        return number(value, place) if isinstance(value, str) else checked(float(value), place)
    except OverflowError:
        raise UnreadableInput("bad_number", "the number is too long", place) from None


def is_number(value: object) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_scalar(value: object) -> bool:
    """Whether a JSON value is a number, or a text that begins like one."""
    return is_number(value) or (isinstance(value, str) and bool(re.match(r"[<\d.]", value.strip())))


def is_numbered(name: str) -> bool:
    """Whether a key names a rank, node, NIC... by number, so not a condition."""
    return bool(_NUMBERED.fullmatch(name.strip()))


def labels_once(names: Sequence[str], field: str) -> dict[str, Label]:
    """Label of each name.

    Raises
    ------
    UnreadableInput
        When two names are one rank.
    """
    seen: dict[Label, str] = {}
    for name in names:
        tag = label(name)
        if tag in seen:
            raise UnreadableInput("named_twice", f"{seen[tag]!r} and {name!r} are one rank", field)
        seen[tag] = name
    return {name: tag for tag, name in seen.items()}
