"""Strategy ``adaptive`` where every probe is a clique of exactly k GPUs: the best cover, then a soft drill-down.

A cover is the least that certifies a healthy replica with such probes (DESIGN section 5, "Better covers").
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.calibration import LOAD
from app.localization.adaptive.clique_examiner import CliqueExaminer
from app.localization.adaptive.clique_readings import CliqueReadings, Effects
from app.localization.adaptive.costs import Costs, certified_effect
from app.localization.adaptive.examiner import TooManyFaults
from app.localization.adaptive.hypotheses import Hypotheses
from app.localization.adaptive.measuring import Measurer, OutOfMeasurements
from app.localization.adaptive.noise import Noise
from app.localization.adaptive.planner import possible, smallest_faults
from app.localization.components import Component
from app.localization.cover import Cover, best_cover, schonheim_bound, survive, vertex_cover
from app.localization.errors import SettingsError
from app.localization.record import Record, Steps
from app.localization.settings import Settings
from app.localization.strategies.base import Note, Report, Strategy, SweepPlan
from app.localization.strategies.probe_size_notes import SMALL_HOP_CLASS, nothing_to_compare, two_could_hide
from app.localization.strategies.soft_report import (
    OUT_OF_MEASUREMENTS,
    PATHS_NOT_SELECTABLE,
    detectable,
    names_of,
    soft_report,
    too_many,
    unstable,
)

# Bound on measurements, in covers.
LIMIT_COVERS, LIMIT_MORE = 6, 200
# With so many probes side by side, two GPUs cannot sit in all of them.
SMALL_REPLICA = 4


class FixedSize(Strategy):
    """See the module.

    Raises
    ------
    SettingsError
        When the server takes fewer sequences than a probe of k GPUs has.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.record = Record(settings)
        self._told = settings.adaptive or Assumptions()
        self._costs = self._told.costs or Costs()
        self._sequences = self._load()
        self._cover, self._first = self._choose_cover()
        self._refused: int | None = None
        self._decided = False
        effects = self._effects()
        limit = LIMIT_COVERS * len(self._cover) + LIMIT_MORE
        self._readings = CliqueReadings(
            Measurer(self.record, limit),
            settings,
            effects,
            Noise.of(self._costs.sigma),
            sequences=self._sequences,
            capacity=limit,
        )
        if self._told.costs is None:
            self._readings.learn_noise()
        rng = np.random.default_rng(settings.seed)
        self._examiner = CliqueExaminer(self._readings, settings, effects, rng)

    # --- what is planned

    def _load(self) -> int:
        """Sequences of a send: the work takes about as long as the fixed part of a step (DESIGN section 5)."""
        k, most = self.settings.k, self._told.max_tokens
        if most is not None and most < k:
            raise SettingsError("max_tokens", f"must be at least {k}: so many a rank has in a probe of {k} GPUs")
        best = LOAD if self._told.costs is None else self._costs.balanced_tokens
        return max(1, round(min(best, best if most is None else most)) // k)

    def _choose_cover(self) -> tuple[Cover, int]:
        """Sets of k that touch everything, and how many of the first touch every GPU.

        In a small replica it is extended so that two slow GPUs leave at least one probe fast.
        """
        n, k = self.settings.gpus, self.settings.k
        if self.settings.paths_selectable:
            best = best_cover(n, k, self.settings.hosts)
            cover, first = best.probes, best.first_class
        else:
            cover = vertex_cover(n, k)
            first = len(cover)
        if k < n < SMALL_REPLICA * k:
            cover = survive(cover, n, k, min(2, n - k))
        return cover, first

    def _effects(self) -> Effects:
        reach, least = self._reach(self._costs.sigma), certified_effect(self._costs.sigma, 1)
        sizes = Hypotheses.beyond(self._costs, possible(self._told.transport), self._told.targets, reach)
        tokens, others = self._tokens, self.settings.k - 1
        return Effects(sizes.of_gpu(tokens, least, over_paths=True), sizes.of_path(tokens, others, least))

    @property
    def _tokens(self) -> int:
        """What a rank sends over its paths."""
        return self._sequences * (self.settings.k - 1)

    def _reach(self, sigma: float) -> dict[str, float]:
        """Smallest faults that one reading tells from noise, by the worse transport unless one is known."""
        return smallest_faults(
            replace(self._costs, sigma=sigma),
            possible(self._told.transport),
            load=(self._tokens, self._tokens),
            r=self.settings.k - 1,
            repeats=(1, 1),
            gpu_over_paths=True,
        )

    def plan(self) -> SweepPlan:
        """The cover, once."""
        n, k, count = self.settings.gpus, self.settings.k, len(self._cover)
        bound = schonheim_bound(n, k) if self.settings.paths_selectable else -(-n // k)
        sequences = sum(len(members) ** 2 for members in self._cover) * self._sequences
        path_units = sum(len(members) * (len(members) - 1) for members in self._cover) * self._sequences
        return SweepPlan(count, count, sequences, path_units, bound, detectable(self.settings, self._smallest()))

    def planned(self) -> int:
        return max(len(self._cover), self.record.measurements)

    def refused(self, rank: int) -> None:
        self._refused = rank

    # --- what is measured

    def run(self) -> Steps[None]:
        self._note_limits()
        try:
            yield from self._examiner.examine(self._cover, self._first)
            self._decided = True
        except OutOfMeasurements:
            self.notes.append(OUT_OF_MEASUREMENTS)
        except TooManyFaults:
            self.notes.append(too_many(self._examiner.found))
        if self._examiner.unstable:
            self.notes.append(unstable(self._examiner.unstable))
        self.notes += [_equals(some) for some in self._examiner.inseparable]

    def _note_limits(self) -> None:
        n, k = self.settings.gpus, self.settings.k
        if not self.settings.paths_selectable:
            self.notes.append(PATHS_NOT_SELECTABLE)
        if len(self._cover) == 1:
            self.notes.append(nothing_to_compare(self.settings))
        elif n - k == 1:
            self.notes.append(two_could_hide(self.settings))

    # --- what is known

    def report(self, *, complete: bool) -> Report:
        return soft_report(
            self.settings,
            self._examiner.found,
            self._examiner.alternatives,
            refused=self._refused,
            untested=self._untested(),
            smallest=self._smallest(),
            level=self._readings.levels.latest(),
            notes=[*self.notes, *([SMALL_HOP_CLASS] if self._readings.small_class else [])],
            complete=complete,
        )

    def _untested(self) -> list[str]:
        """Components that are neither cleared nor accused; ``*`` for all of a kind, or for very many."""
        missing = [] if self.settings.paths_selectable else ["path:*-*"]
        if not self._readings.levels.count or len(self._cover) == 1:
            return ["gpu:*", "path:*-*"]
        return sorted({*names_of(self._examiner.untested(complete=self._decided)), *missing})

    def _smallest(self) -> dict[str, float]:
        learnt = self._told.costs is None
        return self._reach(self._readings.noise.sigma if learnt else self._costs.sigma)


def _equals(components: list[Component]) -> Note:
    names = ", ".join(str(component) for component in components[:20])
    more = f" and {len(components) - 20} more" if len(components) > 20 else ""
    return Note(
        "cannot_be_separated",
        f"one of these may be slow: {names}{more}; no probe of this size would tell which",
    )
