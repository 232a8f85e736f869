"""Faults over time: which strike at a moment, and how strongly."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from app.emulator.noise import uniform
from app.localization.faults import Fault

RAMP_STEPS = 256
"""A growing fault grows in so many equal steps, so that a step's duration needs no new look-up every time."""


class Timeline:
    """The faults that were set at one time, and what they amount to later.

    A fault with a share ``@d`` strikes once in every period, for ``d`` of its length. Where within a period is a
    fixed function of the seed, the fault's text and the period's number: not of the order of faults, and no
    regular beat that probes could fall into step with.

    Parameters
    ----------
    faults : sequence of Fault
        As they were set.
    started : float
        When, s.
    period_s : float
        Length of a period, s.
    seed : int
        Chooses where in its periods a fault strikes.
    """

    def __init__(self, faults: Sequence[Fault], *, started: float, period_s: float = 1.0, seed: int = 0) -> None:
        self.faults = tuple(faults)
        self._varies = any(fault.varies for fault in self.faults)
        self._started = started
        self._period_s = period_s
        self._seed = seed

    def at(self, now: float) -> tuple[Fault, ...]:
        """The faults at a time, each at its strength then; equal as long as nothing changes."""
        if not self._varies:
            return self.faults
        age = max(0.0, now - self._started)
        return tuple(self._now(fault, age) for fault in self.faults if self._strikes(fault, age))

    def _now(self, fault: Fault, age: float) -> Fault:
        if not fault.varies:
            return fault
        grown = min(1.0, age / fault.ramp_s) if fault.ramp_s else 1.0
        return fault.scaled(math.floor(grown * RAMP_STEPS) / RAMP_STEPS)

    def _strikes(self, fault: Fault, age: float) -> bool:
        if fault.duty >= 1:
            return True
        period, into = divmod(age / self._period_s, 1.0)
        begins = (1 - fault.duty) * uniform(self._seed, zlib.crc32(str(fault).encode()), int(period))
        return begins <= into < begins + fault.duty
