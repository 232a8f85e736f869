"""Takes readings, each shape under one number, up to a bound."""

from __future__ import annotations

from app.localization.probes import Phase, Probe
from app.localization.record import Record, Steps
from app.localization.shapes import Shape
from app.localization.thresholds import Reading


class OutOfMeasurements(Exception):
    """The bound on measurements is reached."""


class Measurer:
    """Measures shapes.

    Parameters
    ----------
    record : Record
        Takes probes and readings.
    limit : int
        The most measurements.
    """

    def __init__(self, record: Record, limit: int) -> None:
        self._record, self._limit = record, limit
        self._probes: dict[Shape, Probe] = {}
        self._taken = 0

    def take(self, shape: Shape, purpose: str, phase: Phase) -> Steps[tuple[int, Reading]]:
        """One reading, and the number of its probe: a shape that was measured before keeps number and purpose.

        Raises
        ------
        OutOfMeasurements
            In place of one measurement too many.
        """
        if self._taken >= self._limit:
            raise OutOfMeasurements
        probe = self._probes.get(shape)
        if probe is None:
            probe = self._probes[shape] = self._record.add(shape, phase, purpose)
        readings = self._record.readings[probe.number]
        reading = yield probe.again(len(readings))
        readings.append(reading)
        self._taken += 1
        return probe.number, reading
