"""Strategy ``adaptive``: r-regular probes, soft evidence, confirmation before any accusation (DESIGN, 5)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.calibration import LIGHT_SETS, ROUNDS, loop_costs, scatter, with_paths
from app.localization.adaptive.designs import (
    MANY,
    hop_names,
    mixed_ring,
    parts,
    small_sets,
)
from app.localization.adaptive.examiner import Examiner, TooManyFaults
from app.localization.adaptive.groups import Group, LoopGroup, PathGroup, PathSweep, Test
from app.localization.adaptive.judge import Judge
from app.localization.adaptive.levels import LevelClass, Levels
from app.localization.adaptive.link_sets import LEAST_GPUS
from app.localization.adaptive.measuring import Measurer, OutOfMeasurements
from app.localization.adaptive.model import CostModel
from app.localization.adaptive.noise import Floats, Noise
from app.localization.adaptive.planner import PARTS
from app.localization.components import Component
from app.localization.record import Record, Steps
from app.localization.settings import Settings
from app.localization.shapes import Exchange, Ranks
from app.localization.strategies.base import Note, Report, Strategy, SweepPlan
from app.localization.strategies.path_groups import FEWEST_GROUPS, path_groups, told_apart
from app.localization.strategies.shared_parts import SharedParts
from app.localization.strategies.slower_hops import slower_hops
from app.localization.strategies.soft_report import (
    OUT_OF_MEASUREMENTS,
    PATHS_NOT_SELECTABLE,
    detectable,
    few_fast,
    names_of,
    soft_report,
    too_many,
    unstable,
)

# So few GPUs are cut in three: with two slow ones, one set is healthy.
FEW, THREE = 5, 3
# Bound on measurements, in healthy sweeps.
LIMIT_SWEEPS, LIMIT_MORE = 2, 200
WHOLE_STEPS = Note(
    "whole_steps",
    "with so few GPUs a step is not split into its parts: the smallest faults that could be seen are slowdowns of"
    " whole steps, so of a component alone they are larger",
    open=False,
)
# How much longer the first readings of sends may take than the costs say before a NIC is looked for, log.
FIRST, MUCH_DEARER = 2, math.log(1.15)


class Adaptive(Strategy):
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.record = Record(settings)
        self._told = settings.adaptive or Assumptions()
        self._rng = np.random.default_rng(settings.seed)
        self._groups: list[Group] = []
        self._loops_done = self._paths_done = False
        self._incomparable: list[Component] = []
        self._slower_tiers: set[str] = set()
        self._shared: SharedParts | None = None
        self._refused: int | None = None
        self._model = CostModel(settings.gpus, len(set(settings.hosts or (0,))), self._told)
        noise = Noise.of(self._model.costs.sigma)
        self._levels = Levels(noise.sigma, self._known_levels())
        limit = LIMIT_SWEEPS * self._model.plan.measurements + LIMIT_MORE
        self._judge = Judge(self._levels, noise, self._effects)
        self._examiner = Examiner(Measurer(self.record, limit), self._judge, self._rng)

    # --- what is planned

    @property
    def _in_one(self) -> bool:
        """Whether one probe can test everything: nothing is diluted, and what it should take is known."""
        return self._told.transport == "undiluted" and self._told.trusted

    def _known_levels(self) -> dict[LevelClass, float]:
        if not self._told.trusted:
            return {}
        over_paths = self._model.log_ms(over_paths=True)
        classes = ["any", *hop_names(self.settings.tiers)]
        known = {LevelClass(form, hops): over_paths for form in ("shift", "exchange") for hops in classes}
        return known | {LevelClass("loops"): self._model.log_ms(over_paths=False)}

    def plan(self) -> SweepPlan:
        gpus, plan = self.settings.gpus, self._model.plan
        probes, measurements, path_units = plan.probes_healthy, plan.measurements, plan.path_units
        sequences = measurements * gpus * plan.tokens
        if self._in_one:
            probes, measurements, sequences, path_units = 1, 1, gpus * (gpus - 1), gpus * (gpus - 1)
        return SweepPlan(
            probes,
            measurements,
            sequences,
            path_units if self.settings.paths_selectable else 0,
            lower_bound=1,
            detectable=detectable(self.settings, self._smallest()),
            by_transport={
                transport: detectable(self.settings, smallest) for transport, smallest in plan.by_transport.items()
            },
        )

    def planned(self) -> int:
        return max(1 if self._in_one else self._model.plan.measurements, self.record.measurements)

    def refused(self, rank: int) -> None:
        self._refused = rank

    # --- what is measured

    def run(self) -> Steps[None]:
        try:
            yield from self._stages()
        except OutOfMeasurements:
            self.notes.append(OUT_OF_MEASUREMENTS)
            return
        except TooManyFaults:
            self.notes.append(too_many(self._examiner.found))
            return
        self._loops_done = self._paths_done = True
        if self._examiner.unstable:
            self.notes.append(unstable(self._examiner.unstable))
        if self._examiner.fast:
            self.notes.append(few_fast(self._examiner.fast))
        if self._incomparable:
            self.notes.append(_nothing_to_compare(self._incomparable))

    def _stages(self) -> Steps[None]:
        if not self.settings.paths_selectable:
            self.notes.append(PATHS_NOT_SELECTABLE)
            yield from self._loops()
        elif self._in_one:
            yield from self._halve()
        else:
            yield from self._loops()
            hosts = len(set(self.settings.hosts or ()))
            if self._told.costs is None or hosts > 1:
                yield from self._links()
            groups = self._path_groups(self._ring())
            if hosts < 2 and self._told.costs is not None and (yield from self._dearer(groups)):
                before = len(self._examiner.found)
                yield from self._links()
                groups = groups if len(self._examiner.found) == before else self._path_groups(self._ring())
            yield from self._paths(groups)

    def _halve(self) -> Steps[None]:
        """One probe over everything; while that is slow, halve the GPUs, then the paths (the binary model)."""
        while len(alive := self._alive()) > 1:
            (everything,) = self._path_groups(tuple(alive))
            self._groups = [everything]
            if not (yield from self._examiner.suspicious(everything)):
                return
            loops = self._loop_group(alive, self._model.plan.loop_tokens)
            slow = yield from self._examiner.suspicious(loops)
            if not (slow and (yield from self._examiner.find(loops)) is not None):
                yield from self._examiner.resolve(everything)
                return
        # A last GPU has no path left to be tested by, but may be slow as well.
        if alive:
            yield from self._examiner.examine([self._loop_group(alive, self._model.plan.loop_tokens)])

    def _loops(self) -> Steps[None]:
        """GPUs by self-loops, in disjoint random sets that are compared with each other."""
        calibrate = self._told.costs is None
        load = (self._model.most if calibrate else None) or self._model.plan.loop_tokens
        sets = _random_sets(range(self.settings.gpus), self._rng)
        groups = [self._loop_group(ranks, load) for ranks in sets]
        self._groups += groups
        if calibrate:
            yield from self._calibrate(groups)
        yield from self._examiner.examine(groups)
        self._loops_done = True

    def _calibrate(self, groups: Sequence[LoopGroup]) -> Steps[None]:
        """Noise, fixed and compute costs: disjoint random sets compared with each other (DESIGN, 5, step 1)."""
        for _ in range(ROUNDS):
            yield from self._examiner.read(groups)
        repeats = [[result.reading.value for result in group.results] for group in groups]
        lowest, load, sigma = min(median(values) for values in repeats), groups[0].width, scatter(repeats)
        self._judge.learn(sigma)
        if self._few:
            self._model.assume_unsplit(math.exp(lowest), load, sigma)
            self.notes.append(WHOLE_STEPS)
            return
        light = []
        for group in groups[:LIGHT_SETS]:
            shape = Exchange(tuple(sorted(group.ranks)), (), 1)
            light.append((yield from self._examiner.read_shape(shape, LevelClass("light"))))
        self._model.assume(loop_costs(math.exp(min(light)), math.exp(lowest), load, sigma))

    @property
    def _few(self) -> bool:
        """Whether every shift is a probe of its own in any case, so that there is little to plan."""
        return self.settings.gpus // 2 <= FEWEST_GROUPS

    def _links(self) -> Steps[None]:
        """What many paths share, and what a path costs."""
        load = self._model.plan.tokens
        stage = SharedParts(self.settings, self._examiner, self._levels, self._rng)
        self._shared = stage
        effects = self._model.path_effects(load, 1, self._judge.noise.sigma)
        level = yield from stage.examine(self._ring, load, self._model.hypotheses.severities, effects)
        self._slower_tiers = stage.slower
        self.notes += stage.notes
        if self._told.costs is None and not self._few and level is not None:
            sigma = self._judge.noise.sigma
            self._model.assume(with_paths(self._model.costs, math.exp(level), load, sigma))

    def _dearer(self, groups: Sequence[PathGroup]) -> Steps[bool]:
        """Whether sends take much longer than the costs that were given, in each of the first readings."""
        first = groups[:FIRST] if len(self._alive()) >= LEAST_GPUS else ()
        yield from self._examiner.read(first)
        most = self._model.log_ms(over_paths=True) + MUCH_DEARER
        return bool(first) and all(group.results[0].reading.value > most for group in first)

    def _ring(self) -> Ranks:
        tiers = list(self.settings.tiers.values())
        return mixed_ring(self._alive(), self.settings.hosts, self._rng, tiers)

    def _loop_group(self, ranks: Sequence[int], width: int) -> LoopGroup:
        order = tuple(int(rank) for rank in self._rng.permutation(list(ranks)))
        beliefs = Beliefs(len(order), self._model.hypotheses.severities)
        return LoopGroup(beliefs, width, ranks=order)

    def _alive(self) -> list[int]:
        """GPUs that are not slow: only between them can paths be tested."""
        found = [one.component for one in self._examiner.found if one.component.kind != "path"]
        slow = {rank for component in found for rank in component.members}
        return [rank for rank in range(self.settings.gpus) if rank not in slow]

    def _paths(self, groups: Sequence[PathGroup]) -> Steps[None]:
        """Paths between the GPUs that are not slow, by groups of cyclic shifts."""
        if groups:
            self._groups += groups
            yield from self._examiner.examine(groups)

    def _path_groups(self, ring: Ranks) -> list[PathGroup]:
        if len(ring) < 2:
            return []
        hosts, severities, most = self.settings.hosts, self._model.hypotheses.severities, self._model.plan.r
        if self._in_one:
            everything = PathSweep("any", None, 1, len(ring) ** 2, diluted=False, severities=severities)
            return [PathGroup.of_shifts(ring, tuple(range(1, len(ring) // 2 + 1)), everything)]

        tiers = told_apart(ring, self.settings.tiers, self._slower_tiers)
        sweep = PathSweep("any", hosts, self._model.plan.tokens, most, severities=severities, tiers=tiers)
        return self._comparable(path_groups(ring, sweep))

    def _comparable(self, groups: list[PathGroup]) -> list[PathGroup]:
        """Groups that have another of their hop class beside them; what is in a lone one is noted."""
        if self._levels.known:
            return groups
        counts = Counter(group.sweep.hops for group in groups)
        lone = [group for group in groups if counts[group.sweep.hops] == 1]
        self._incomparable += [group.component(item) for group in lone for item in range(group.beliefs.items)]
        return [group for group in groups if counts[group.sweep.hops] > 1]

    def _effects(self, group: Group, test: Test) -> Floats:
        sigma = self._judge.noise.sigma
        if isinstance(group, LoopGroup):
            return self._model.gpu_effects(group.width, sigma)
        return self._model.path_effects(group.width, test.dilution, sigma)

    # --- what is known

    def report(self, *, complete: bool) -> Report:
        level, level_sigma = self._level()
        return soft_report(
            self.settings,
            self._examiner.found,
            {} if self._shared is None else self._shared.equals,
            refused=self._refused,
            untested=self._untested(),
            smallest=self._smallest(),
            level=level,
            level_sigma=level_sigma,
            notes=[*self.notes, *([] if self._shared is None else self._shared.words()), *self._slower_hops()],
            complete=complete,
        )

    def _slower_hops(self) -> list[Note]:
        """Of a whole sweep only: before its second readings a burst may make a class look slow."""
        groups = [group for group in self._groups if isinstance(group, PathGroup)] if self._paths_done else []
        return slower_hops(groups, self._levels, self._slower_tiers)

    def _smallest(self) -> dict[str, float]:
        """What is told from noise with the planned repeats, by the worst of the transports that may hold."""
        told = self._told.costs
        return self._model.smallest(self._judge.noise.sigma if told is None else told.sigma)

    def _level(self) -> tuple[float | None, float]:
        """Level of the sweep over the paths, or of self-loops where that is all there is; see `Levels.latest`."""
        for group in reversed(self._groups):
            for result in group.results:
                latest = self._levels.latest(result.test.of)
                if latest is not None:
                    return latest
        return None, 0.0

    def _untested(self) -> list[str]:
        """Components that are neither cleared nor accused; ``*`` for all of a kind, or for very many."""
        paths = self.settings.paths_selectable
        if not self._loops_done and not self._groups:
            return ["gpu:*", "path:*-*"]
        missing = [] if paths and (self._paths_done or self._path_groups_begun()) else ["path:*-*"]
        still_open = [c for group in self._groups for c in self._examiner.still_open(group)]
        still_open += self._incomparable
        return sorted({*names_of(still_open), *missing})

    def _path_groups_begun(self) -> bool:
        return any(isinstance(group, PathGroup) for group in self._groups)


def _random_sets(ranks: Iterable[int], rng: np.random.Generator) -> list[Ranks]:
    """Disjoint random sets; a few of them small where there are many."""
    shuffled = [int(rank) for rank in rng.permutation(list(ranks))]
    if len(shuffled) <= FEW:
        return parts(shuffled, THREE, rng)
    if len(shuffled) < MANY:
        return parts(shuffled, PARTS, rng)
    small, rest = small_sets(shuffled)
    return [*map(tuple, small), *parts(rest, PARTS + 1 - len(small), rng)]


def _nothing_to_compare(components: Sequence[Component]) -> Note:
    names = ", ".join(map(str, components))
    return Note("nothing_to_compare", f"{names} has no other path of its kind that it could be compared with")
