"""A simulated replica in the physics model: T = t0 + slowest compute + slowest traffic, with noise that drifts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.costs import Costs, Transport
from app.localization.components import Component
from app.localization.errors import SettingsError
from app.localization.events import Event, measured
from app.localization.faults import Fault
from app.localization.probes import Probe
from app.localization.shapes import Edges, Shape

NoiseFamily = Literal["own", "unknown"]

DRIFT = 0.005
BURST_RATE, BURST_LOG = 0.05, math.log(2)


class OwnNoise:
    """The family that the engine's likelihood knows: lognormal, 5 % of the readings doubled, a drifting level.

    Parameters
    ----------
    sigma : float
        Standard deviation of the logarithm; 0: no noise at all.
    rng : numpy.random.Generator
        Where it comes from.
    """

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        self._sigma, self._rng, self._level = sigma, rng, 0.0

    def draw(self) -> float:
        """The next reading's logarithmic error."""
        if not self._sigma:
            return 0.0
        self._level += DRIFT * self._rng.standard_normal()
        burst = BURST_LOG if self._rng.random() < BURST_RATE else 0.0
        return float(self._level + self._sigma * self._rng.standard_normal() + burst)


class UnknownNoise:
    """A family that the likelihood does not know, drawn anew for every job.

    Bursts come at a rate of 2 to 8 %, of random size, and may last several readings; what is left is
    autocorrelated. The level drifts as in `OwnNoise`.
    """

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        self._sigma, self._rng, self._level, self._last = sigma, rng, 0.0, 0.0
        self._rate = float(rng.uniform(0.02, 0.08))
        self._persistence = float(rng.uniform(0.0, 0.6))
        self._length = float(rng.uniform(1.0, 3.0))
        self._burst, self._left = 0.0, 0

    def draw(self) -> float:
        """The next reading's logarithmic error."""
        rng, rho = self._rng, self._persistence
        self._level += DRIFT * rng.standard_normal()
        self._last = rho * self._last + math.sqrt(1 - rho * rho) * self._sigma * rng.standard_normal()
        # A longer burst begins less often, so that the rate counts readings.
        if self._left == 0 and rng.random() < self._rate / self._length:
            self._burst, self._left = float(rng.uniform(math.log(1.2), math.log(4))), int(rng.geometric(1 / self._length))
        disturbed, self._left = (self._burst if self._left else 0.0), max(0, self._left - 1)
        return float(self._level + self._last + disturbed)


@dataclass(frozen=True, slots=True)
class _Slow:
    """Faults as arrays: factor and added ms of GPUs, shape (n,), and of undirected paths."""

    gpu_factor: NDArray[np.float64]
    gpu_delay: NDArray[np.float64]
    paths: tuple[tuple[int, int, float, float], ...]


class PhysicsReplica:
    """Answers probes.

    Parameters
    ----------
    gpus : int
        n.
    faults : iterable of Fault
        Slow GPUs and paths; a slow path is slow both ways.
    costs : Costs
        As they are.
    transport : {"serial", "shared"}
        See `Costs.path_effect`.
    noise : OwnNoise or UnknownNoise
        Multiplies a reading by the exponential of its draw.

    Raises
    ------
    SettingsError
        A hard, flapping or growing fault, or one on a shared part: the binary model knows those.
    """

    def __init__(
        self,
        gpus: int,
        faults: Iterable[Fault],
        costs: Costs,
        transport: Transport,
        noise: OwnNoise | UnknownNoise,
    ) -> None:
        self._costs, self._transport, self._noise = costs, transport, noise
        self._gpus = gpus
        self._slow = _compile(gpus, tuple(faults))

    def answer(self, probe: Probe, number: int) -> Event:
        """The event that answers a measurement; ``number`` is its place in the session."""
        ms = self.step_ms(probe.shape) * math.exp(self._noise.draw())
        return measured(probe, tbt_ms=ms, ttft_ms=ms, wall_ms=ms)

    def step_ms(self, shape: Shape) -> float:
        """A step of that shape with the faults, without noise."""
        edges, n, slow = shape.edges, self._gpus, self._slow
        received = np.bincount(edges.receiver, edges.sequences, n)
        compute = received * self._costs.compute_ms * slow.gpu_factor + slow.gpu_delay * (received > 0)
        return self._costs.fixed_ms + float(compute.max()) + self._traffic_ms(edges)

    def _traffic_ms(self, edges: Edges) -> float:
        away, n = edges.over_paths, self._gpus
        sender, receiver, base = edges.sender[away], edges.receiver[away], edges.sequences[away] * self._costs.path_ms
        if not len(base):
            return 0.0
        ends = (sender, receiver)
        busiest = max(float(np.bincount(end, base, n).max()) for end in ends)
        if not self._slow.paths:
            return busiest
        slow, delay = base.astype(np.float64), np.zeros(len(base))
        for u, v, factor, added in self._slow.paths:
            on = ((sender == u) & (receiver == v)) | ((sender == v) & (receiver == u))
            slow[on] *= factor
            delay[on] += added
        return max(self._link_ms(end, base, slow, delay) for end in ends)

    def _link_ms(
        self,
        end: NDArray[np.intp],
        base: NDArray[np.float64],
        slow: NDArray[np.float64],
        delay: NDArray[np.float64],
    ) -> float:
        n = self._gpus
        if self._transport == "serial":
            return float(np.bincount(end, slow + delay, n).max())
        slowest, longest = np.zeros(n), np.zeros(n)
        np.maximum.at(slowest, end, slow)
        np.maximum.at(longest, end, delay)
        return float((np.maximum(np.bincount(end, base, n), slowest) + longest).max())


def _compile(gpus: int, faults: tuple[Fault, ...]) -> _Slow:
    factor, delay = np.ones(gpus), np.zeros(gpus)
    paths = []
    for fault in faults:
        component = fault.component
        if fault.hard or fault.varies or not isinstance(component, Component):
            raise SettingsError("fault", f"{fault}: the physics model knows steadily slow GPUs and paths only")
        if component.kind == "gpu":
            factor[component.members[0]] *= fault.factor
            delay[component.members[0]] += fault.delay_ms
        else:
            u, v = component.members
            paths.append((u, v, fault.factor, fault.delay_ms))
    return _Slow(factor, delay, tuple(paths))
