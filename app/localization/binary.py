"""A simulated replica in the binary model: a probe that contains a slow component is slow, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from app.localization.components import Component
from app.localization.events import Event, failed, measured, timed_out
from app.localization.faults import Fault
from app.localization.placement import Placement
from app.localization.probes import Probe
from app.localization.shapes import Shape

HEALTHY_MS = 20.0
HUNG_MS = 5000.0
BURST_RATE, BURST_FACTOR = 0.05, 2.0

Contains = Callable[[Shape], bool]


class BinaryReplica:
    """Answers probes.

    A probe that contains a faulty component takes ``factor`` times as long, or ``delay_ms`` longer, undiluted;
    of several the worst counts, and what is at fault in everything (``all``) comes on top. A probe contains a
    path when it sends over it, and a shared part when one of its paths uses that. A fault that flaps strikes a
    measurement with its share as the probability; one that grows does so with the sum of the latencies so far.

    Parameters
    ----------
    faults : iterable of Fault
        What is at fault.
    placement : Placement, optional
        Needed for faults on shared parts.
    noise : float
        Sigma of the lognormal noise; above zero, 5 % of the measurements also double (bursts).
    seed : tuple of int
        What is random about a measurement comes from (seed, its number).
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        placement: Placement | None = None,
        *,
        noise: float = 0.0,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        self._faults = [(fault, _contains(fault, placement)) for fault in faults]
        self._noise = noise
        self._seed = seed
        self._elapsed_ms = 0.0

    def answer(self, probe: Probe, number: int) -> Event:
        """The event that answers measurement ``number`` (from 0) of a session."""
        struck = list(self._struck(probe.shape, number))
        hard = {fault.hard for fault in struck}
        if "error" in hard:
            return failed(probe, code="engine_failed", detail="the engine failed (500)", in_flight=probe.members)
        if "hang" in hard:
            return timed_out(
                probe, waited_ms=HUNG_MS, engine_alive=False, wall_ms=HUNG_MS, in_flight=probe.members
            )
        ms = max((_slowed(f, HEALTHY_MS) for f in struck if f.component.kind != "all"), default=HEALTHY_MS)
        for fault in struck:
            ms = _slowed(fault, ms) if fault.component.kind == "all" else ms
        ms *= _noise(self._noise, (*self._seed, number))
        self._elapsed_ms += ms
        return measured(probe, tbt_ms=ms, ttft_ms=ms, wall_ms=ms)

    def _struck(self, shape: Shape, number: int) -> Iterator[Fault]:
        for index, (fault, contains) in enumerate(self._faults, start=1):
            if not contains(shape):
                continue
            if fault.duty < 1 and np.random.default_rng((*self._seed, number, index)).random() >= fault.duty:
                continue
            grown = min(1.0, self._elapsed_ms / 1e3 / fault.ramp_s) if fault.ramp_s else 1.0
            yield fault.scaled(grown) if fault.varies else fault


def _contains(fault: Fault, placement: Placement | None) -> Contains:
    component = fault.component
    if isinstance(component, Component):
        return _sends_over(*component.members) if component.kind == "path" else _involves(*component.members)
    if component.kind == "all":
        return lambda _shape: True
    if placement is None:
        raise ValueError(f"a fault on {component} needs a placement")
    crossing = placement.crosses(component)
    return lambda shape: bool(crossing[shape.edges.sender, shape.edges.receiver].any())


def _involves(rank: int) -> Contains:
    return lambda shape: bool((shape.edges.receiver == rank).any() or (shape.edges.sender == rank).any())


def _sends_over(u: int, v: int) -> Contains:
    def contains(shape: Shape) -> bool:
        a, b = shape.edges.sender, shape.edges.receiver
        return bool((((a == u) & (b == v)) | ((a == v) & (b == u))).any())

    return contains


def _slowed(fault: Fault, ms: float) -> float:
    return ms * fault.factor + fault.delay_ms


def _noise(sigma: float, seed: tuple[int, ...]) -> float:
    if not sigma:
        return 1.0
    rng = np.random.default_rng(seed)
    burst = BURST_FACTOR if rng.random() < BURST_RATE else 1.0
    return float(np.exp(sigma * rng.standard_normal())) * burst
