"""Finds the slow items of groups: sweep, noisy binary search, confirmation, and a second look at the rest.

DESIGN section 5, strategy adaptive, steps 3 to 5. Evidence stays soft: a reading moves beliefs, it never clears or
accuses alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from app.localization.adaptive.calibration import ROUNDS
from app.localization.adaptive.doubts import BETTER, Doubts, Pieces
from app.localization.adaptive.found import Found
from app.localization.adaptive.groups import GpuGroup, Group, LoopGroup, Test, TestResult
from app.localization.adaptive.judge import Judge
from app.localization.adaptive.levels import LevelClass, LogReading
from app.localization.adaptive.links import LinkGroup
from app.localization.adaptive.measuring import Measurer
from app.localization.adaptive.noise import Floats, log_mean
from app.localization.adaptive.rank_test import probability_by_chance
from app.localization.components import Component
from app.localization.probes import Phase
from app.localization.record import Steps
from app.localization.shapes import Shape

# An item is accused at 500:1 against clean references.
ACCEPTED, REJECTED = math.log(500), -4.0
# Share of the suspicion that an item must hold before it is confirmed.
SURE = 0.95
# A group is searched once "nothing is slow" is less likely: never after one reading, which a burst explains, too.
WORTH_SEARCHING = 0.01
SEARCH_STEPS, ANCHOR_STEPS = 60, 16
SWEEP_ROUNDS = 4
CONFIRM_TURNS = 12
REJECTIONS = 3
MAX_FOUND = 8
FEW_GROUPS = 8
FAST_READINGS = 4
# An accusation by chance, were the noise of any kind: with 6 pairs, all readings of the suspect must be higher.
BY_CHANCE = 1 / 500


class TooManyFaults(Exception):
    """More components are slow than faults explain."""


class Examiner:
    """Measures groups until every item is cleared or accused.

    Parameters
    ----------
    measurer : Measurer
        Takes readings.
    judge : Judge
        Holds readings against levels.
    rng : numpy.random.Generator
        For orders and references.
    """

    def __init__(self, measurer: Measurer, judge: Judge, rng: np.random.Generator) -> None:
        self.found: list[Found] = []
        self.unstable: list[Component] = []
        self.fast: list[Component] = []
        """What is faster than most of what it was compared with, by as much as a fault: then most may be slow."""
        self._measurer, self._judge, self._rng = measurer, judge, rng
        self._beside: Sequence[Group] = ()

    @property
    def slow(self) -> frozenset[Component]:
        """What is accused."""
        return frozenset(found.component for found in self.found)

    @property
    def cleared(self) -> float:
        """See `Judge.cleared`."""
        return self._judge.cleared

    def examine(self, groups: Sequence[Group], rounds: int | None = None) -> Steps[None]:
        """Clear or accuse every item of some groups.

        Parameters
        ----------
        groups : sequence of Group
            Compared with each other.
        rounds : int, optional
            Readings of each before anything is judged; default: one, or more where the noise has to be learnt from
            few groups.

        Raises
        ------
        OutOfMeasurements, TooManyFaults
            Before everything is decided.
        """
        self._beside = groups
        yield from self._sweep(groups, rounds)
        self._pad(groups)
        for group in groups:
            yield from self.resolve(group)

    def read(self, groups: Sequence[Group]) -> Steps[None]:
        """One reading of every group, in random order, which a sweep then begins with."""
        for place in self._rng.permutation(len(groups)):
            yield from self._take(groups[place], groups[place].whole(), "calibrate", 1)

    def read_shape(self, shape: Shape, of: LevelClass) -> Steps[float]:
        """One reading that tests nothing, log ms."""
        _, reading = yield from self.read_numbered(shape, of)
        return reading.value

    def read_numbered(self, shape: Shape, of: LevelClass) -> Steps[tuple[int, LogReading]]:
        """One reading that belongs to no group, and the number of its probe."""
        return (yield from self._measure(shape, of, "calibrate", 1))

    def odds(self, pairs: Sequence[tuple[LogReading, LogReading]], effects: Floats) -> float:
        """Log odds that the first of each pair is slower, by one size; not more than chance allows."""
        ratios = np.zeros(len(effects))
        for suspect, reference in pairs:
            ratios += self._compare(effects, suspect, reference)[0]
        surely = self._surely_slower([(suspect.value, reference.value) for suspect, reference in pairs])
        return log_mean(ratios) if surely else min(0.0, log_mean(ratios))

    def suspicious(self, group: Group) -> Steps[bool]:
        """Measure a group that is held against a known level until it is cleared, or looks slow."""
        yield from self._sweep([group])
        return group.beliefs.evidence() > self.cleared

    def still_open(self, group: Group) -> list[Component]:
        """Items of a group that are neither cleared nor accused."""
        if group.beliefs.evidence() < self.cleared:
            return []
        unclear = group.beliefs.ratios() > self.cleared
        return [group.component(int(item)) for item in np.flatnonzero(unclear)]

    def _measure(self, shape: Shape, of: LevelClass, purpose: str, phase: Phase) -> Steps[tuple[int, LogReading]]:
        number, reading = yield from self._measurer.take(shape, purpose, phase)
        value = math.log(reading.value_ms)
        return number, self._judge.levels.add(of, number, value, censored=reading.censored)

    def _take(self, group: Group, test: Test, purpose: str, phase: Phase) -> Steps[TestResult]:
        number, reading = yield from self._measure(test.shape, test.of, purpose, phase)
        group.results.append(TestResult(test, number, reading))
        return group.results[-1]

    # --- the sweep

    def _sweep(self, groups: Sequence[Group], rounds: int | None = None) -> Steps[None]:
        """Measure groups until each is cleared or clearly suspicious."""
        order = [groups[i] for i in self._rng.permutation(len(groups))]
        # Few groups tell little of each other: where the noise has to be learnt, each is read more than once.
        rounds = rounds or (ROUNDS if self._judge.learns and len(groups) <= FEW_GROUPS else 1)
        for reading in range(rounds):
            for group in order:
                if len(group.results) <= reading:
                    yield from self._take(group, group.whole(), "cover", 1)
        self._judge.judge_again(groups)
        yield from self._question_fast(order)
        for _ in range(SWEEP_ROUNDS):
            suspicious = [g for g in order if g.beliefs.evidence() > self.cleared]
            undecided = [g for g in suspicious if g.beliefs.weights()[1] > WORTH_SEARCHING]
            if not undecided:
                return
            for group in [*self._references(order, suspicious, 2 - len(undecided)), *undecided]:
                yield from self._take(group, group.whole(), "recheck", 1)
            self._judge.judge_again(groups)

    def _question_fast(self, order: Sequence[Group]) -> Steps[None]:
        """Read GPUs again that are far faster than most: no burst makes one fast, slow GPUs make most slow."""
        loops = [group for group in order if isinstance(group, LoopGroup)]
        fast = self._judge.fast(loops)
        for group in fast:
            while len(group.results) < FAST_READINGS:
                yield from self._take(group, group.whole(), "recheck", 1)
        if fast:
            self._judge.judge_again(order)
            still = self._judge.fast(loops)
            self.fast += [group.component(item) for group in still for item in range(group.beliefs.items)]

    def _references(self, order: Sequence[Group], suspicious: Sequence[Group], count: int) -> list[Group]:
        """Cleared groups to measure beside a lone undecided one, at the same time."""
        cleared = [g for g in order if all(g is not other for other in suspicious)]
        if self._judge.levels.known:
            return []
        return [cleared[i] for i in self._rng.permutation(len(cleared))[: max(0, count)]]

    def _pad(self, groups: Sequence[Group]) -> None:
        loops = [group for group in groups if isinstance(group, GpuGroup)]
        clear = [rank for g in loops if g.beliefs.evidence() < self.cleared for rank in g.ranks]
        for group in loops:
            group.padding = [rank for rank in clear if rank not in group.ranks]

    # --- one group

    def resolve(self, group: Group) -> Steps[None]:
        """Clear or accuse every item of a group that looks slow.

        Raises
        ------
        OutOfMeasurements, TooManyFaults
            Before everything is decided.
        """
        while (item := (yield from self.find(group))) is not None:
            yield from self._look_again(group, item)

    def find(self, group: Group) -> Steps[int | None]:
        """Accuse one item of a group; None when there is none to accuse, or none that can be confirmed."""
        for _ in range(REJECTIONS + 1):
            item = yield from self._search(group)
            if item is None:
                return None
            confirmed, odds = yield from self._confirm(group, item)
            if confirmed is not None:
                self.found.append(confirmed)
                self._distrust()
                if len(self.found) > MAX_FOUND:
                    raise TooManyFaults
                return item
            group.acquittals.append((item, odds))
            self._judge.believe_again(group)
        self._unconfirmed(group, group.acquittals[-1][0])
        return None

    def _unconfirmed(self, group: Group, item: int) -> None:
        if group.part is None:
            self.unstable.append(group.component(item))

    def _search(self, group: Group) -> Steps[int | None]:
        """Noisy binary search for one item; None when the suspicion dissolves."""
        for step in range(1, SEARCH_STEPS + 1):
            if group.beliefs.evidence() < self.cleared:
                return None
            weights, nothing = group.beliefs.weights()
            best = int(weights.argmax())
            if weights[best] > SURE * (1 - nothing) and nothing < 0.05:
                return best
            test = group.cut(*group.beliefs.most_telling())
            result = yield from self._take(group, test, f"search {group.component(best)}", 2)
            self._judge.believe(group, result)
            self._judge.mark(group, result)
            if step % ANCHOR_STEPS == 0:
                yield from self._anchor(group)
        self._unconfirmed(group, int(group.beliefs.weights()[0].argmax()))
        return None

    def _anchor(self, group: Group) -> Steps[None]:
        """Measure a cleared group: what is suspicious says nothing of the level, which drifts in a long search."""
        others = [one for one in self._beside if one is not group]
        clear = [one for one in others if one.beliefs.evidence() < self.cleared]
        if clear and not self._judge.levels.known:
            other = clear[int(self._rng.integers(len(clear)))]
            yield from self._take(other, other.whole(), "recheck", 2)
            self._judge.believe_again(group)

    def _confirm(self, group: Group, item: int) -> Steps[tuple[Found | None, float]]:
        """Interleaved pairs of the suspect alone and of clean references (DESIGN section 5, step 5).

        Gives what is confirmed, if it is, and the log odds of that.
        """
        purpose = str(group.component(item))
        ratios, odds, alone = np.zeros(group.beliefs.severities), 0.0, set[int]()
        differences: list[float] = []
        pairs: list[tuple[float, float]] = []
        doubts, pieces, suspected = Doubts(), self._pieces(group, item), self._distrust()
        for turn in range(CONFIRM_TURNS):
            reference = self._reference(group, item, suspected)
            if reference is None and not self._judge.levels.known:
                break  # nothing to compare it with: then nothing is accused
            test = doubts.next() or group.cut(item, item + 1)
            number, seen = yield from self._pair(test, reference, purpose, reverse=turn % 2 == 1)
            alone.add(number)
            effects = self._judge.effects(group, test)
            more, difference = self._compare(effects, seen[False], seen.get(True))
            ratios += more
            odds = log_mean(ratios)
            pieces.add(group.pieces(item, test), more)
            # All of what shares a part is slow: some that are fast, and once more in two other turns, acquit it.
            if group.part and log_mean(more) < 0:
                if doubts.before(test):
                    return None, min(odds, REJECTED)
                continue
            differences.append(difference)
            if reference is not None:
                pairs.append((seen[False].value, seen[True].value))
            slowdown = math.exp(float(np.median(differences)))
            enough = turn + 1 >= group.least_turns and not doubts.open
            if enough and pieces.lead < -BETTER:
                return None, REJECTED
            enough &= pieces.lead > BETTER
            if odds > ACCEPTED and enough and slowdown > 1 and self._surely_slower(pairs):
                slow, fast = self._evidence(group, item)
                numbers = tuple(sorted(slow | alone)), tuple(sorted(set(fast) - alone))
                component, censored = group.component(item), seen[False].censored
                return Found(component, odds, slowdown, censored, *numbers, part=group.part), odds
            if odds < REJECTED:
                break
        return None, odds

    def _distrust(self) -> frozenset[Component]:
        """What else is suspicious may be slow as well: tell groups whose items exchange who is no good partner."""
        suspected = frozenset(component for group in self._beside for component in self.still_open(group))
        may_be = {rank for component in suspected for rank in component.members}
        accused = {rank for component in self.slow if component.kind != "path" for rank in component.members}
        for group in self._beside:
            if isinstance(group, LinkGroup):
                group.suspected, group.accused = may_be, accused
        return suspected

    def _pieces(self, group: Group, item: int) -> Pieces:
        """What the search, where it tested an item alone, says of it and of its pieces."""
        pieces = Pieces()
        alone = [result for result in group.results if (result.test.low, result.test.high) == (item, item + 1)]
        for result in alone:
            ratios = self._judge.ratios(group, result)
            if ratios is not None:
                pieces.add(group.pieces(item, result.test), ratios)
        return pieces

    def _pair(
        self, test: Test, reference: Shape | None, purpose: str, *, reverse: bool
    ) -> Steps[tuple[int, dict[bool, LogReading]]]:
        """Readings of a suspect, and of its reference if there is one; and the number of the suspect's probe."""
        number, seen = 0, {}
        shapes = [test.shape] if reference is None else [test.shape, reference]
        for shape in reversed(shapes) if reverse else shapes:
            taken, reading = yield from self._measure(shape, test.of, purpose, 2)
            reading.clean = 0.5 if shape is reference else 1e-3
            seen[shape is reference] = reading
            number = number if shape is reference else taken
        return number, seen

    def _reference(self, group: Group, item: int, suspected: frozenset[Component]) -> Shape | None:
        """A clean probe to hold an item against, or None: without one, or with known levels.

        What is suspected is left out of it while anything else is there.
        """
        if self._judge.levels.known:
            return None
        clean = group.reference(item, self._rng, self.slow | suspected)
        return clean if clean is not None else group.reference(item, self._rng, self.slow)

    def _surely_slower(self, pairs: Sequence[tuple[float, float]]) -> bool:
        """Where the noise is only learnt, its likelihood alone accuses nobody."""
        if not (self._judge.learns and pairs):
            return True
        return probability_by_chance([s for s, _ in pairs], [r for _, r in pairs]) < BY_CHANCE

    def _evidence(self, group: Group, item: int) -> tuple[set[int], list[int]]:
        """Probes of the sweep and the search that contain an item: the slow ones, and the others."""
        touching = [r for r in group.results if r.test.low <= item < r.test.high]
        slow = {result.number for result in touching if self._judge.is_slow(group, result)}
        return slow, sorted({result.number for result in touching} - slow)

    def _compare(self, effects: Floats, suspect: LogReading, reference: LogReading | None) -> tuple[Floats, float]:
        """Log-likelihood ratios by severity, and by how much the suspect was slower, log."""
        if reference is not None:
            difference = suspect.value - reference.value
            return self._judge.noise.pair_ratios(
                difference, effects, self._judge.noise.sigma * math.sqrt(2)
            ), difference
        residual = self._judge.residual(suspect)
        if residual is None:
            return np.zeros(len(effects)), 0.0
        return self._judge.noise.ratios(residual[0], effects, residual[1], censored=suspect.censored), residual[0]

    def _look_again(self, group: Group, item: int) -> Steps[None]:
        """What a fault masked: believe only what was read without it, and measure what is left without it."""
        group.beliefs.excluded[item] = True
        group.results = [r for r in group.results if not r.test.low <= item < r.test.high]
        self._judge.believe_again(group)
        low = 0
        while low < group.beliefs.items:
            test = group.cut(low, group.beliefs.items)
            if group.items_of(test) and not np.all(group.beliefs.ratios()[test.low : test.high] < self.cleared):
                result = yield from self._take(group, test, "verify", 2)
                self._judge.believe(group, result)
                self._judge.mark(group, result)
            low = test.high
