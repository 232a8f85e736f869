"""What the comparisons of two or three switches or rails and of three hosts have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from app.localization.adaptive.examiner import ACCEPTED
from app.localization.adaptive.found import Found
from app.localization.adaptive.levels import LogReading
from app.localization.adaptive.links import Part
from app.localization.components import Component, group_of
from app.localization.shapes import Ranks

# Comparisons of each two units: at least, to clear them; enough to tell slower from slow by chance; and at most,
# since what else a reading may meet can hide a difference in one or two of them.
LOOKS, ENOUGH, TURNS = 2, 8, 16
# Of the sends over a unit, where it is the unit that is slow.
NEARLY_ALL = 0.75


@dataclass
class Readings:
    """Readings of the sends over something, by new GPUs every time."""

    numbers: list[int] = field(default_factory=list)
    readings: list[LogReading] = field(default_factory=list)

    @property
    def level(self) -> float:
        """Log ms."""
        return median(reading.value for reading in self.readings)


@dataclass
class UnitPair(Readings):
    """Readings of sends between two switches or hosts."""

    units: tuple[int, int] = (-1, -1)


def throughout(differences: Sequence[float]) -> bool:
    """Whether nearly all sends over a unit take longer, whoever sends: not just those of one host, say."""
    high = float(np.quantile(differences, NEARLY_ALL))
    return float(np.mean([one > high / 2 for one in differences])) >= NEARLY_ALL


def settled(turns: int, odds: Sequence[float], cleared: float) -> bool:
    """Whether so many comparisons say of every two units that they are slow to each other, or not."""
    return turns >= ENOUGH and all(one > ACCEPTED or one < cleared for one in odds)


def beside(
    readings: Sequence[LogReading], references: Sequence[LogReading]
) -> list[tuple[LogReading, LogReading]]:
    """Readings and what they are held against, turn by turn: what drifts is in both."""
    return list(zip(readings, references, strict=True))


def members(ring: Ranks, labels: Sequence[int], unit: int) -> Component:
    """The GPUs of a unit that take part."""
    return group_of(rank for rank in ring if labels[rank] == unit)


def accused(component: Component, part: Part, slow: Sequence[Readings], *, odds: float, rise: float) -> Found:
    """A unit whose sends to others are slow: log odds, and by how much, log."""
    return Found(
        component,
        odds,
        math.exp(rise),
        any(reading.censored for pair in slow for reading in pair.readings),
        tuple(sorted({number for pair in slow for number in pair.numbers})),
        (),
        part=part,
    )
