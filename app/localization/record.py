"""The probes of a session and their readings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import TypeVar

from app.localization.probes import Phase, Probe
from app.localization.settings import Settings
from app.localization.shapes import Shape
from app.localization.thresholds import Reading

T = TypeVar("T")
# A strategy is a generator: it yields the next measurement and is sent the reading.
Steps = Generator[Probe, Reading, T]


class Record:
    """Numbers probes and keeps readings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.probes: dict[int, Probe] = {}
        self.readings: dict[int, list[Reading]] = defaultdict(list)

    def add(self, shape: Shape, phase: Phase, purpose: str) -> Probe:
        """A new probe with the next number."""
        probe = Probe(len(self.probes) + 1, shape, phase, purpose)
        self.probes[probe.number] = probe
        return probe

    @property
    def measurements(self) -> int:
        """Probes, each time one was taken."""
        return sum(map(len, self.readings.values()))

    @property
    def path_units(self) -> int:
        """Sequences times directed paths, of all measurements."""
        return sum(self.probes[number].path_units * len(taken) for number, taken in self.readings.items())

    def cost(self, seconds: float) -> dict[str, float]:
        """Distinct probes, measurements, path-units (tokens x directed paths) and seconds."""
        return {
            "probes": sum(bool(readings) for readings in self.readings.values()),
            "measurements": self.measurements,
            "path_units": self.path_units * self.settings.tokens,
            "seconds": round(seconds, 3),
        }
