"""A simulated replica in the physics model: a step waits for the slowest computation and the slowest transfers.

T = t0 + max over GPUs of compute + max over links of dispatch + max over links of combine, with noise that drifts.
A message u -> v is dispatched over u's sending and v's receiving side, and what v made of it comes back the
other way: two barriers, as a real expert-parallel step has. So a path that is slow in one direction only shows
whole where both of its ends send to each other, and half where one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.costs import Costs, Transport
from app.localization.components import Component
from app.localization.errors import SettingsError
from app.localization.events import Event, measured
from app.localization.faults import Fault
from app.localization.placement import Placement, SharedPart
from app.localization.probes import Probe
from app.localization.shapes import Edges, Shape

NoiseFamily = Literal["own", "unknown"]
Floats = NDArray[np.float64]

DRIFT = 0.005
BURST_RATE, BURST_LOG = 0.05, math.log(2)


class Noise(Protocol):
    """Logarithmic errors of one job's readings, in their order."""

    def draw(self) -> float:
        """The next reading's logarithmic error."""


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
        return self._level + self._sigma * self._rng.standard_normal() + burst


class UnknownNoise:
    """A family that the likelihood does not know, drawn anew for every job.

    2 to 8 % of the readings are in bursts, each of a random size and of one to three readings in the mean; what is
    left is autocorrelated, by up to 0.6. The level drifts as in `OwnNoise`.

    Parameters
    ----------
    sigma : float
        Standard deviation of the logarithm without bursts and drift; 0: no noise at all.
    rng : numpy.random.Generator
        Where it comes from.
    """

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        self._sigma, self._rng, self._level = sigma, rng, 0.0
        self._rate = rng.uniform(0.02, 0.08)
        self._persistence = rng.uniform(0.0, 0.6)
        self._length = rng.uniform(1.0, 3.0)
        self._last = sigma * rng.standard_normal()
        self._burst, self._left = 0.0, 0

    def draw(self) -> float:
        """The next reading's logarithmic error."""
        if not self._sigma:
            return 0.0
        rng, kept = self._rng, self._persistence
        self._level += DRIFT * rng.standard_normal()
        self._last = kept * self._last + math.sqrt(1 - kept * kept) * self._sigma * rng.standard_normal()
        return self._level + self._last + self._disturbance()

    def _disturbance(self) -> float:
        # The longer bursts are, the fewer begin, so that the rate counts readings.
        if self._left == 0 and self._rng.random() < self._rate / self._length:
            self._burst = self._rng.uniform(math.log(1.2), math.log(4))
            self._left = int(self._rng.geometric(1 / self._length))
        if self._left == 0:
            return 0.0
        self._left -= 1
        return self._burst


def make_noise(family: NoiseFamily, sigma: float, rng: np.random.Generator) -> Noise:
    """The noise of one job."""
    return OwnNoise(sigma, rng) if family == "own" else UnknownNoise(sigma, rng)


@dataclass(frozen=True, slots=True)
class _Effect:
    """What faults do: to a message over one direction of a path, or to everything; the delay in ms."""

    factor: float = 1.0
    delay: float = 0.0

    def and_also(self, fault: Fault) -> _Effect:
        return _Effect(self.factor * fault.factor, self.delay + fault.delay_ms)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message over a slow link: its ends, what it takes when healthy, and what faults do to it."""

    start: int
    end: int
    healthy_ms: float
    effect: _Effect


@dataclass(frozen=True, slots=True)
class _Slow:
    """Faults, compiled.

    Parameters
    ----------
    gpu_factor, gpu_delay : ndarray of float, shape (n,)
        Of each GPU; the delay in ms.
    links : dict
        (from, to) -> effect, both directions of each faulty path.
    everything : _Effect
        On every step, whole.
    """

    gpu_factor: Floats
    gpu_delay: Floats
    links: dict[tuple[int, int], _Effect]
    everything: _Effect


class PhysicsReplica:
    """Answers probes; a measurement is one step.

    Parameters
    ----------
    gpus : int
        n.
    faults : iterable of Fault
        Steadily slow GPUs, paths and shared parts, and slowdowns of everything (``all``). A path's factor holds
        for its half of the path's cost, in each slow direction; its delay is added to each message that way,
        dispatched or combined, as in the emulator: slow both ways it adds twice as much to a round trip. A shared
        part slows every path that uses it.
    costs : Costs
        As they are. Of ``path_ms`` one half is dispatch, the other combine.
    transport : {"serial", "shared"}
        See `Costs.path_effect`.
    noise : Noise, optional
        Multiplies a reading by the exponential of its draw.
    sequence_tokens : int
        Tokens that a sequence of a probe adds to a step: cliques of single sequences need a load, too.
    placement : Placement, optional
        Where the ranks sit; needed for faults on shared parts.

    Raises
    ------
    SettingsError
        A fault that this model does not know (hard, flapping or growing: the binary model does), one on a rank
        beyond n or on a part that is not there, or another transport.
    """

    def __init__(
        self,
        gpus: int,
        faults: Iterable[Fault],
        costs: Costs,
        transport: Transport,
        noise: Noise | None = None,
        *,
        sequence_tokens: int = 1,
        placement: Placement | None = None,
    ) -> None:
        if transport not in ("serial", "shared"):
            raise SettingsError("transport", f"must be serial or shared in the physics model, got {transport!r}")
        self._gpus, self._transport, self._noise = gpus, transport, noise
        self._fixed_ms = costs.fixed_ms
        self._compute_ms = costs.compute_ms * sequence_tokens
        self._half_ms = costs.path_ms * sequence_tokens / 2
        self._slow = _compile(gpus, faults, placement)

    def answer(self, probe: Probe, _number: int) -> Event:
        """The event that answers the session's next measurement: the noise goes by the order of the calls."""
        ms = self.step_ms(probe.shape)
        if self._noise is not None:
            ms *= math.exp(self._noise.draw())
        return measured(probe, tbt_ms=ms, ttft_ms=ms, wall_ms=ms)

    def step_ms(self, shape: Shape) -> float:
        """A step of that shape with the faults, without noise."""
        slow, edges = self._slow, shape.edges
        received = np.bincount(edges.receiver, edges.sequences, self._gpus)
        compute = received * self._compute_ms * slow.gpu_factor + slow.gpu_delay * (received > 0)
        ms = self._fixed_ms + float(compute.max()) + self._traffic_ms(edges)
        return ms * slow.everything.factor + slow.everything.delay

    def _traffic_ms(self, edges: Edges) -> float:
        """Dispatch and combine, each as long as its busiest link."""
        away = edges.over_paths
        sender, receiver = edges.sender[away], edges.receiver[away]
        if not len(sender):
            return 0.0
        sequences, half_ms = edges.sequences[away], self._half_ms
        sent = np.multiply(half_ms, np.bincount(sender, sequences, self._gpus), dtype=np.float64)
        received = np.multiply(half_ms, np.bincount(receiver, sequences, self._gpus), dtype=np.float64)
        links, dispatch, combine = self._slow.links, [], []
        for u, v in links:
            carried = int(sequences[(sender == u) & (receiver == v)].sum())
            if carried:
                dispatch.append(_Message(u, v, carried * half_ms, links[u, v]))
                combine.append(_Message(v, u, carried * half_ms, links[v, u]))
        return self._barrier_ms(sent, received, dispatch) + self._barrier_ms(received, sent, combine)

    def _barrier_ms(self, outgoing: Floats, incoming: Floats, slow: list[_Message]) -> float:
        """Until the busiest side of a link is done; given what each takes when healthy, shape (n,)."""
        return max(
            self._busiest_ms(outgoing, [(message.start, message) for message in slow]),
            self._busiest_ms(incoming, [(message.end, message) for message in slow]),
        )

    def _busiest_ms(self, healthy: Floats, slow: list[tuple[int, _Message]]) -> float:
        if not slow:
            return float(healthy.max())
        busy, delay = healthy.copy(), np.zeros_like(healthy)
        for rank, message in slow:
            effect = message.effect
            if self._transport == "serial":
                busy[rank] += message.healthy_ms * (effect.factor - 1)
                delay[rank] += effect.delay
            else:  # a slow message hides behind the others until it alone outlasts them
                busy[rank] = max(busy[rank], message.healthy_ms * effect.factor)
                delay[rank] = max(delay[rank], effect.delay)
        return float((busy + delay).max())


def _compile(gpus: int, faults: Iterable[Fault], placement: Placement | None) -> _Slow:
    gpu_factor, gpu_delay = np.ones(gpus), np.zeros(gpus)
    links: dict[tuple[int, int], _Effect] = {}
    everything = _Effect()
    for fault in faults:
        component = fault.component
        _check(fault, gpus, placement)
        if component.kind == "all":
            everything = everything.and_also(fault)
        elif isinstance(component, Component) and component.kind == "gpu":
            gpu_factor[component.members[0]] *= fault.factor
            gpu_delay[component.members[0]] += fault.delay_ms
        else:
            one_way = fault.one_way
            for way in _ways(component, placement):
                before = links.get(way, _Effect())
                links[way] = before.and_also(fault) if one_way in {None, way} else before
    return _Slow(gpu_factor, gpu_delay, links, everything)


def _ways(component: Component | SharedPart, placement: Placement | None) -> list[tuple[int, int]]:
    """Both directions of a path, or of every path that uses a shared part."""
    if isinstance(component, Component):
        u, v = component.members
        return [(u, v), (v, u)]
    assert placement is not None, "checked before"
    return [(u, v) for u, v in np.argwhere(placement.crosses(component)).tolist()]


def _check(fault: Fault, gpus: int, placement: Placement | None) -> None:
    component = fault.component
    if fault.hard or fault.varies:
        raise SettingsError("fault", f"{fault}: the physics model knows steady slowdowns only")
    if not isinstance(component, Component) and component.kind != "all":
        problem = "needs a topology" if placement is None else placement.problem_with(component)
        if problem:
            raise SettingsError("fault", f"{fault}: {problem}")
    if isinstance(component, Component) and max(component.members) >= gpus:
        raise SettingsError("fault", f"{fault}: ranks go from 0 to {gpus - 1} here")
