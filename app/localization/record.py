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

    def cost(self, seconds: float) -> dict[str, float]:
        """Distinct probes, measurements, path-units (tokens x directed paths) and seconds."""
        taken = {number: len(readings) for number, readings in self.readings.items() if readings}
        units = sum(self.probes[number].path_units * count for number, count in taken.items())
        return {
            "probes": len(taken),
            "measurements": sum(taken.values()),
            "path_units": units * self.settings.tokens,
            "seconds": round(seconds, 3),
        }
