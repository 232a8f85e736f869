"""Readings of probes of k GPUs: taken, held against a level that drifts, and turned into evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.localization.adaptive.calibration import refined
from app.localization.adaptive.clique_beliefs import CliqueBeliefs, CliqueReading
from app.localization.adaptive.judge import ROUNDS
from app.localization.adaptive.measuring import Measurer
from app.localization.adaptive.noise import LEARNT_BURST_RATE, Floats, Noise, log_means
from app.localization.adaptive.sweep_levels import SweepLevels
from app.localization.components import Component
from app.localization.ledger import SMALLEST_CLASS
from app.localization.probes import Phase, hop_class
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.shapes import Clique, Ranks


@dataclass(frozen=True, slots=True)
class Effects:
    """Rise of log T by severity, shape (severities,) each, in a probe that contains a slow component.

    Parameters
    ----------
    gpu, path : ndarray of float
        Of a slow GPU, and of a slow path.
    """

    gpu: Floats
    path: Floats

    def of(self, component: Component) -> Floats:
        """Those of a component."""
        return self.gpu if component.kind == "gpu" else self.path


class CliqueReadings:
    """Takes readings and keeps what they say.

    Parameters
    ----------
    measurer : Measurer
        Takes readings.
    settings : Settings
        GPUs, k, hosts, and whether paths can be told apart.
    effects : Effects
        How much longer a fault makes a probe.
    noise : Noise
        Of one reading.
    sequences : int
        On every send.
    capacity : int
        The most readings.
    """

    def __init__(
        self,
        measurer: Measurer,
        settings: Settings,
        effects: Effects,
        noise: Noise,
        *,
        sequences: int,
        capacity: int,
    ) -> None:
        self.noise = noise
        self.beliefs = CliqueBeliefs(settings.gpus, len(effects.gpu), paths=settings.paths_selectable)
        self.levels = SweepLevels(noise.sigma, capacity)
        self.small_class = False
        """Whether a hop class had too few probes for a level of its own."""
        self._measurer, self._settings, self._effects = measurer, settings, effects
        self._sequences = sequences
        self._guess: float | None = None
        self._all: list[CliqueReading] = []
        self._merged: dict[str, str] = {}

    def learn_noise(self) -> None:
        """Take the noise from the readings; what it was made with is the first guess."""
        self._guess = self.noise.sigma
        self.noise = Noise(self.noise.sigma, LEARNT_BURST_RATE)

    def sweep(self, order: Sequence[Ranks]) -> Steps[None]:
        """Read every set once, then judge them together."""
        self._merge_small_classes(order)
        for members in order:
            yield from self._measure(members, "cover", 1)
        self.levels.start()
        self.judge_again()

    def difference(self, suspect: CliqueReading, reference: CliqueReading) -> float:
        """By how much a suspect was slower than a reference, log; against their levels where classes differ."""
        own, other = suspect.at, reference.at
        if self.levels.alike(own, other):
            return self.levels.value(own) - self.levels.value(other)
        above = [self.levels.residual(at) for at in (own, other)]
        return 0.0 if above[0] is None or above[1] is None else above[0][0] - above[1][0]

    def _merge_small_classes(self, cover: Sequence[Ranks]) -> None:
        """Hop classes with too few probes for a level of their own are held against the largest one's."""
        names = [hop_class(members, self._settings.hosts) for members in cover]
        largest = max(sorted(set(names)), key=names.count)
        for name in {f"{self._settings.k}/same_host", f"{self._settings.k}/cross_host", *names} - {largest}:
            if names.count(name) < SMALLEST_CLASS:
                self._merged[name] = largest
                self.small_class |= name in names

    def _measure(self, members: Sequence[int], purpose: str, phase: Phase) -> Steps[CliqueReading]:
        ranks = tuple(sorted(int(rank) for rank in members))
        number, answer = yield from self._measurer.take(Clique(ranks, self._sequences), purpose, phase)
        hops = hop_class(ranks, self._settings.hosts)
        value = math.log(answer.value_ms)
        at = self.levels.add(self._merged.get(hops, hops), number, value, censored=answer.censored)
        touched = self.beliefs.touched(ranks)
        ratios = np.zeros((len(touched), self.beliefs.severities))
        reading = CliqueReading(at, number, frozenset(ranks), touched, ratios, censored=answer.censored)
        self._all.append(reading)
        return reading

    def take(self, members: Sequence[int], purpose: str) -> Steps[CliqueReading]:
        """Measure, and believe it at once."""
        reading = yield from self._measure(members, purpose, 2)
        residual, spread = self.levels.residual(reading.at) or (0.0, math.inf)
        self._believe([reading], np.array([residual]), np.array([spread]))
        return reading

    def _believe(self, readings: Sequence[CliqueReading], residuals: Floats, spreads: Floats) -> None:
        """Turn distances from the level into evidence, and say how clean each reading is."""
        known = np.isfinite(spreads)
        wide = np.where(known, spreads, 1.0)
        censored = np.array([reading.censored for reading in readings])
        residuals = np.maximum(residuals, -wide)  # far below its level a reading still speaks against any fault
        of_gpu = self.noise.ratios(residuals, self._effects.gpu, wide, censored=censored) * known[:, None]
        of_path = self.noise.ratios(residuals, self._effects.path, wide, censored=censored) * known[:, None]
        least = min(self._effects.gpu.min(), self._effects.path.min()) / 2
        for place, reading in enumerate(readings):
            gpus = len(reading.members)
            reading.ratios[:gpus], reading.ratios[gpus:] = of_gpu[place], of_path[place]
            reading.slow = bool(known[place]) and bool(censored[place] or residuals[place] > least)
            self.beliefs.update(reading)
        undisturbed = self.noise.undisturbed(residuals, wide)
        for place, reading in enumerate(readings):
            # What is suspected counts as far as the reading itself does not speak against it.
            own = np.minimum(self.beliefs.odds[reading.touched], log_means(reading.ratios))
            odds = float(np.exp(np.minimum(50.0, own)).sum())
            if self.beliefs.accused[reading.touched].any():
                odds = math.inf
            clean = undisturbed[place] / (1 + odds) if known[place] else self.levels.clean[reading.at]
            self.levels.clean[reading.at] = max(1e-3, clean)

    def judge_again(self) -> None:
        """Believe all readings anew, and weigh what is clean and what the level is, in turns."""
        for _ in range(ROUNDS):
            residuals, spreads = self.levels.residuals()
            self._learn(residuals, spreads)
            self.beliefs.forget()
            self._believe(self._all, residuals, spreads)

    def _learn(self, residuals: Floats, spreads: Floats) -> None:
        """Noise from how far clean readings are off their level; the first guess counts as a few of them."""
        if self._guess is None:
            return
        clean = self.levels.clean[: len(residuals)] * np.isfinite(spreads)
        sigma = refined(self._guess, clean, residuals * self.noise.sigma / spreads)
        self.noise = Noise(sigma, LEARNT_BURST_RATE)
        self.levels.sigma = sigma
