"""The paper's two phases: cover everything (Algorithm 1), then isolate each suspect (Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import replace

from app.localization.components import gpu
from app.localization.cover import greedy_cover, schonheim_bound, survive, vertex_cover
from app.localization.evidence import Evidence, Finding, hitting_set
from app.localization.ledger import Ledger
from app.localization.probes import Probe
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.strategies.base import Note, Report, Strategy, SweepPlan
from app.localization.strategies.drilldown import Drilldown
from app.localization.strategies.probe_size_notes import SMALL_HOP_CLASS, nothing_to_compare, two_could_hide
from app.localization.strategies.threshold_report import detectable, threshold_report

PATHS_NOT_SELECTABLE = Note(
    "paths_not_selectable",
    "this all-to-all backend sends every token to every GPU, so a slow path slows every probe alike and cannot be"
    " found; only GPUs were tested",
)
EVERY_PROBE_SLOW = Note("every_probe_slow", "every probe was slow or cut off, so none can serve as a reference")
# A replica of so few GPUs sits in one host, as a rule.
ONE_HOST = 8
# So many slow GPUs may be behind a sweep in which most probes are slow.
FEW_GPUS = 3
# With four probes or more side by side, two GPUs cannot sit in all of them.
SMALL_REPLICA = 4


class FaultSense(Strategy):
    """Phase 1 covers all GPUs and paths; Phase 2 tests every component of a suspicious probe on its own."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.record = self.ledger = Ledger(settings)
        self.evidence = Evidence(settings)
        self.drilldown = Drilldown(settings, self.ledger, self.evidence, self.notes)
        self._limits: tuple[Note, ...] = ()

    def plan(self) -> SweepPlan:
        """The whole cover, with all its repeats."""
        n, k, repeats = self.settings.gpus, self.settings.k, self.settings.repeats
        cover = self.cover()
        return SweepPlan(
            probes=len(cover),
            measurements=len(cover) * repeats,
            sequences=sum(len(members) ** 2 for members in cover) * repeats,
            path_units=sum(len(members) * (len(members) - 1) for members in cover) * repeats,
            lower_bound=schonheim_bound(n, k) if self.settings.paths_selectable else -(-n // k),
            detectable=detectable(self.settings, None),
        )

    def refused(self, rank: int) -> None:
        """See `Strategy.refused`."""
        self.evidence.accuse(Finding(gpu(rank), hard=True))

    def report(self, *, complete: bool) -> Report:
        """See `Strategy.report`."""
        return threshold_report(self.ledger, self.evidence, self.notes, complete=complete)

    def cover(self) -> tuple[tuple[int, ...], ...]:
        """Greedy cover of GPUs and paths, or of GPUs alone where paths cannot be told apart.

        In a small replica it is extended so that two slow GPUs leave at least one probe fast.
        """
        n, k = self.settings.gpus, self.settings.k
        cover = greedy_cover(n, k, self.settings.hosts) if self.settings.paths_selectable else vertex_cover(n, k)
        if n >= SMALL_REPLICA * k or n <= k:
            return cover
        return survive(cover, n, k, self._faults_to_survive)

    @property
    def _faults_to_survive(self) -> int:
        return min(2, self.settings.gpus - self.settings.k)

    def run(self) -> Steps[None]:
        """Sweep the cover, then drill down into what is suspicious."""
        probes = [self.ledger.open(members, 1, "cover") for members in self.cover()]
        yield from self.ledger.sweep(probes)
        self.ledger.set_baselines(probes)
        if self._most_are_slow_without_a_cause(probes):
            self.ledger.use_medians(probes)
        self._note_limits()
        if len(probes) == 1:
            self.notes.append(nothing_to_compare(self.settings))
            return
        yield from self._drill(probes)
        if self._accused_like_the_rest(probes):
            self._start_over(probes)
            yield from self._drill(probes)

    def _drill(self, probes: list[Probe]) -> Steps[None]:
        suspicious = self._take_in(probes)
        if len(suspicious) == len(probes):
            self.notes.append(EVERY_PROBE_SLOW)
            return
        yield from self.drilldown.run(suspicious)

    def _unexplained(self, probes: list[Probe]) -> list[Probe]:
        """Cover probes with nothing accused and nothing open in them, less those that were slow only once."""
        return [
            p
            for p in probes
            if not (self.evidence.explains(p.members) or self.evidence.open_in(p.members))
            and (p.number in self.evidence.slow_probes or not self.ledger.is_slow(p))
        ]

    def _accused_like_the_rest(self, probes: list[Probe]) -> bool:
        """Whether something is accused though its probes take hardly longer than those without any finding.

        Then healthy probes differ among themselves by about alpha, and the low baseline belongs to the fastest
        kind: hop classes that nobody told us of.
        """
        rest = sorted(self.ledger.slowdown(p.number) for p in self._unexplained(probes))
        accused = [self.ledger.slowdown(number) for f in self.evidence.findings.values() for number in f.tests]
        if not rest or not accused:
            return False
        return min(accused) <= math.sqrt(self.settings.alpha) * rest[int(0.9 * (len(rest) - 1))]

    def _start_over(self, probes: list[Probe]) -> None:
        """Judge the same sweep again, by the median of what contains no finding."""
        self.ledger.use_medians(self._unexplained(probes))
        self.evidence = Evidence(self.settings)
        self.notes = [note for note in self.notes if note in self._limits]
        self.drilldown = Drilldown(self.settings, self.ledger, self.evidence, self.notes)

    def _most_are_slow_without_a_cause(self, probes: list[Probe]) -> bool:
        """Whether most probes are above the threshold, and no few slow GPUs could be why.

        Then the low baseline is the odd one. Without a topology, the few probes that stay inside a host are
        faster than all that do not, and every path between hosts would look slow.
        """
        if self.settings.hosts is not None or self.settings.gpus <= ONE_HOST:
            return False
        slow = [p.members for p in probes if self.ledger.is_slow(p)]
        if 2 * len(slow) <= len(probes):
            return False
        cleared = {rank for p in probes if not self.ledger.is_slow(p) for rank in p.members}
        suspects = [tuple(rank for rank in members if rank not in cleared) for members in slow]
        by_gpus = [ranks for ranks in suspects if ranks]
        few_paths = len(suspects) - len(by_gpus) <= len(probes) // 5
        return not (few_paths and hitting_set(by_gpus, FEW_GPUS) is not None)

    def _note_limits(self) -> None:
        """What this job cannot see, whatever it measures."""
        if not self.settings.paths_selectable:
            self.notes.append(PATHS_NOT_SELECTABLE)
        if self.ledger.small_classes:
            self.notes.append(SMALL_HOP_CLASS)
        if self._faults_to_survive == 1:
            self.notes.append(two_could_hide(self.settings))
        self._limits = tuple(self.notes)

    def planned(self) -> int:
        """The whole cover with its repeats, and what the drill-down still expects."""
        phase1 = [p for p in self.ledger.probes.values() if p.phase == 1]
        return len(phase1) * self.settings.repeats + self.drilldown.planned()

    def _take_in(self, probes: list[Probe]) -> list[Probe]:
        """Clear what fast probes contain; return the slow ones."""
        suspicious = []
        for probe in probes:
            if self.ledger.is_slow(probe):
                suspicious.append(probe)
                self.evidence.slow_probes[probe.number] = probe.members
            else:
                self.evidence.clear(probe.members)
        return suspicious


class Pairwise(FaultSense):
    """Every pair on its own, n(n-1)/2 probes: what the paper compares with."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, k=2))
