"""The probes of a session, their readings, and the thresholds they are judged by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from app.localization.probes import Phase, Probe, hop_class
from app.localization.record import Record, Steps
from app.localization.settings import Settings
from app.localization.shapes import Clique
from app.localization.thresholds import Reading, baseline_ms, combine

# Fewer probes of a hop class than this give no baseline of their own.
SMALLEST_CLASS = 3


class Ledger(Record):
    """The record of a strategy that judges probes by a threshold: it knows when a probe is slow.

    ``suspicious`` is T > alpha x baseline of its hop class (paper). A right-censored reading counts as slow:
    a probe's deadline lies far above any threshold.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.baselines: dict[str, float] = {}
        self.small_classes: set[str] = set()

    def open(self, members: Iterable[int], phase: Phase, purpose: str) -> Probe:
        """A new probe with the next number; a smaller one than k carries more sequences a send."""
        ranks = tuple(sorted(members))
        # So that every GPU still computes for about k sequences, and a slow one stands out as much.
        sequences = max(1, round(self.settings.k / len(ranks)))
        return self.add(Clique(ranks, sequences), phase, purpose)

    def sweep(self, probes: list[Probe]) -> Steps[None]:
        """Measure all probes once, then all once more: a burst then hits one repeat of a probe, not all."""
        for repeat in range(self.settings.repeats):
            for probe in probes:
                self.readings[probe.number].append((yield probe.again(repeat)))

    def judge(self, probe: Probe) -> Steps[bool]:
        """Measure a probe until it is decided whether it is slow.

        Stops as soon as the remaining repeats cannot change the answer: the median's side is known when most
        repeats agree, the minimum's with the first fast one.
        """
        repeats, readings = self.settings.repeats, self.readings[probe.number]
        for repeat in range(repeats):
            readings.append((yield probe.again(repeat)))
            slow = sum(self._above(probe, reading) for reading in readings)
            fast = len(readings) - slow
            if fast and self.settings.aggregate == "min":
                return False
            if 2 * fast > repeats or (2 * slow > repeats and self.settings.aggregate == "median"):
                break
        return self.is_slow(probe)

    def value(self, number: int) -> Reading:
        """The aggregated reading of a probe."""
        return combine(self.readings[number], self.settings.aggregate)

    def set_baselines(self, probes: Iterable[Probe]) -> None:
        """Take the healthy reference of each hop class from a sweep.

        A class of fewer than three probes has no baseline of its own and borrows the highest one: that can
        miss a fault, but never accuses a path for being the longer kind.
        """
        by_class: dict[str, list[float]] = defaultdict(list)
        for probe in probes:
            by_class[self.class_of(probe.members)].append(self.value(probe.number).value_ms)
        found = {
            name: baseline_ms(values, self.settings.baseline, self.settings.alpha)
            for name, values in by_class.items()
            if len(values) >= SMALLEST_CLASS
        }
        if found:
            self.small_classes |= set(by_class) - set(found)
        else:
            pooled = [value for values in by_class.values() for value in values]
            found = dict.fromkeys(by_class, baseline_ms(pooled, self.settings.baseline, self.settings.alpha))
        self.baselines.update(dict.fromkeys(by_class, max(found.values())) | found)

    def use_medians(self, probes: Iterable[Probe]) -> None:
        """Take the median of each hop class as its reference after all."""
        by_class: dict[str, list[float]] = defaultdict(list)
        for probe in probes:
            by_class[self.class_of(probe.members)].append(self.value(probe.number).value_ms)
        self.baselines.update({name: median(values) for name, values in by_class.items()})

    def class_of(self, members: tuple[int, ...]) -> str:
        """Hop class by which a probe is compared."""
        return hop_class(members, self.settings.hosts)

    def threshold(self, probe: Probe) -> float:
        """Alpha x baseline, in milliseconds."""
        return self.settings.alpha * self.baselines[self.class_of(probe.members)]

    def is_slow(self, probe: Probe) -> bool:
        """Whether the aggregated reading is above the threshold, or censored."""
        return self._above(probe, self.value(probe.number))

    def slowdown(self, number: int) -> float:
        """Aggregated reading over baseline."""
        probe = self.probes[number]
        return self.value(number).value_ms / self.baselines[self.class_of(probe.members)]

    def _above(self, probe: Probe, reading: Reading) -> bool:
        return reading.censored or reading.value_ms > self.threshold(probe)

    def judged(self) -> Iterable[Probe]:
        """Probes that have a reading and a baseline to compare it with."""
        return (
            probe
            for number, probe in self.probes.items()
            if self.readings.get(number) and self.class_of(probe.members) in self.baselines
        )
