"""How long an engine step takes: pure arithmetic, no clock and no I/O.

T = fixed + max over GPUs of compute + dispatch + combine: two barriers, each of them the maximum over GPUs of
max(send, receive). Dispatch carries a token u -> v, combine its result v -> u. A path that is slow one way only
therefore costs in both barriers where its ends send to each other, and in one where only one of them sends, as was
seen on a real server of four ranks.

Several faults combine by one rule, in any order: their factors multiply and their delays add. A shared part
counts once on a path, however often the path crosses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.emulator.noise import Noise, NoiseKey
from app.localization.components import Component
from app.localization.faults import Fault
from app.localization.placement import HOP_CLASSES, HopClass, Placement, SharedPart, layout

Transport = Literal["serial", "shared"]
Mode = Literal["sparse", "allgather"]
Floats = NDArray[np.float64]
_Way = tuple[NDArray[np.intp], NDArray[np.intp]]
Loads = Mapping[int, Mapping[int, int]]
"""sender -> receiver -> copies of tokens sent in one step; a token whose experts are on k GPUs is k copies."""

DEFAULT_PATH_MS: Mapping[HopClass, float] = {"same_host": 0.5, "cross_host": 1.0}
_KEPT_EFFECTS = 8


def involved(loads: Loads, idle: AbstractSet[int] = frozenset()) -> set[int]:
    """Return the ranks that send or receive in a step.

    An idle rank's dummy token to its own GPU does not count: otherwise every GPU would take part in every
    step, and no fault that strikes on work could be told from one that always strikes.
    """
    ranks: set[int] = set()
    for sender, row in loads.items():
        for receiver, tokens in row.items():
            if tokens and not (sender == receiver and sender in idle):
                ranks.update((sender, receiver))
    return ranks


@dataclass(frozen=True, slots=True)
class _Paths:
    """Of a message from one rank to another: factor and added ms, of shape (n, n); whether alike both ways."""

    factor: Floats
    delay: Floats
    symmetric: bool


@dataclass(frozen=True, slots=True)
class _Effects:
    """Faults compiled for look-up; ``paths`` is None where none is slow."""

    gpus: dict[int, tuple[float, float]]
    paths: _Paths | None
    factor: float
    delay: float


def _compile(faults: Iterable[Fault], placement: Placement) -> _Effects:
    # Sorted, so that rounding does not depend on the order either.
    slow = sorted((fault for fault in faults if fault.hard is None), key=str)
    gpus: dict[int, tuple[float, float]] = {}
    factor, delay = 1.0, 0.0
    on_paths = []
    for fault in slow:
        if fault.component.kind == "all":
            factor, delay = factor * fault.factor, delay + fault.delay_ms
        elif isinstance(fault.component, Component) and fault.component.kind == "gpu":
            before = gpus.get(fault.component.members[0], (1.0, 0.0))
            gpus[fault.component.members[0]] = before[0] * fault.factor, before[1] + fault.delay_ms
        else:
            on_paths.append(fault)
    return _Effects(gpus, _compile_paths(on_paths, placement) if on_paths else None, factor, delay)


def _compile_paths(faults: Sequence[Fault], placement: Placement) -> _Paths:
    n = len(placement.places)
    factor, delay = np.ones((n, n)), np.zeros((n, n))
    for fault in faults:
        if isinstance(fault.component, SharedPart):
            crossing = placement.crosses(fault.component)
            factor[crossing] *= fault.factor
            delay[crossing] += fault.delay_ms
            continue
        u, v = fault.component.members
        for way in ((u, v), (v, u)):
            if fault.affects(*way):
                factor[way] *= fault.factor
                delay[way] += fault.delay_ms
    symmetric = np.array_equal(factor, factor.T) and np.array_equal(delay, delay.T)
    return _Paths(factor, delay, symmetric)


@dataclass(frozen=True, slots=True)
class _Flows:
    """The entries of `Loads` as arrays of one length."""

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    tokens: NDArray[np.int64]

    @classmethod
    def of(cls, loads: Loads) -> _Flows:
        sender = [s for s, row in loads.items() for _ in row]
        receiver = [r for row in loads.values() for r in row]
        tokens = [t for row in loads.values() for t in row.values()]
        return cls(np.array(sender, np.intp), np.array(receiver, np.intp), np.array(tokens, np.int64))

    def over_paths(self) -> _Flows:
        """Without what stays on its GPU, and without empty entries."""
        keep = (self.sender != self.receiver) & (self.tokens > 0)
        return _Flows(self.sender[keep], self.receiver[keep], self.tokens[keep])


@dataclass(frozen=True)
class LatencyModel:
    """The time of one lock-step engine step.

    Parameters
    ----------
    gpus : int
        Number of ranks.
    hosts : int, sequence of str or Placement
        See `app.localization.placement.layout`.
    fixed_ms : float
        Part of every step, ms.
    compute_ms : float
        Per token that a GPU receives, ms.
    path_ms : mapping of hop class to float
        Per token over a path, half of it in dispatch and half in combine, ms. ``cross_rail`` and ``cross_leaf``,
        where left out, are as ``cross_host``.
    transport : {"serial", "shared"}
        Whether a GPU's sends use its NIC one after the other or flow concurrently.
    mode : {"sparse", "allgather"}
        Whether a token goes to the GPUs of its experts, or to every GPU through a collective. A collective is
        as slow as its slowest path, whatever the destinations, and carries as many tokens as the fullest rank.
    noise : Noise
        Multiplies the whole step.

    Raises
    ------
    ValueError
        A value out of range; it is named.
    """

    gpus: int
    hosts: int | Sequence[str] | Placement = 1
    fixed_ms: float = 3.0
    compute_ms: float = 1.25
    path_ms: Mapping[HopClass, float] = field(default_factory=lambda: dict(DEFAULT_PATH_MS))
    transport: Transport = "serial"
    mode: Mode = "sparse"
    noise: Noise = Noise()  # noqa: RUF009 - immutable
    placement: Placement = field(init=False, repr=False, compare=False)
    _base_ms: Floats = field(init=False, repr=False, compare=False)
    _effects: dict[tuple[Fault, ...], _Effects] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.gpus < 2:
            raise ValueError(f"gpus must be at least 2, got {self.gpus}")
        for name, value in (("fixed_ms", self.fixed_ms), ("compute_ms", self.compute_ms)):
            if not 0 <= value < 1e6:
                raise ValueError(f"{name} must be 0 to 1000000, got {value}")
        placement = self.hosts if isinstance(self.hosts, Placement) else layout(self.gpus, self.hosts)
        if len(placement.places) != self.gpus:
            raise ValueError(f"hosts: the topology has {len(placement.places)} GPUs, not {self.gpus}")
        by_class = np.array([_path_ms(self.path_ms, hop) for hop in HOP_CLASSES])
        object.__setattr__(self, "placement", placement)
        base_ms = by_class[placement.hop_codes]
        np.fill_diagonal(base_ms, 0.0)  # what stays on a GPU crosses nothing
        object.__setattr__(self, "_base_ms", base_ms)
        object.__setattr__(self, "_effects", {})

    def step_ms(
        self,
        loads: Loads,
        faults: Iterable[Fault] = (),
        noise_keys: Iterable[NoiseKey] = (),
        idle: AbstractSet[int] = frozenset(),
    ) -> float:
        """Return the duration of a step in ms, noise included; see `work_ms`."""
        return self.work_ms(loads, faults, idle) * self.noise.factor(noise_keys)

    def work_ms(self, loads: Loads, faults: Iterable[Fault] = (), idle: AbstractSet[int] = frozenset()) -> float:
        """Return the duration of a step without noise.

        Parameters
        ----------
        loads : mapping
            sender -> receiver -> copies of tokens, dummy tokens included.
        faults : iterable of Fault
            Slowdowns at their present strength; hard faults have no duration and are the engine's to act on.
        idle : set of int
            Ranks whose row is a dummy token: one to its own GPU meets no added delay there, see `involved`.

        Returns
        -------
        float
            Milliseconds.
        """
        effects = self._compiled(tuple(faults))
        flows = _Flows.of(loads)
        network = self._collective_ms if self.mode == "allgather" else self._routed_ms
        own_dummies = {rank: loads.get(rank, {}).get(rank, 0) for rank in effects.gpus if rank in idle}
        compute = self._compute_ms(flows, effects, own_dummies)
        return (self.fixed_ms + compute + network(flows, effects)) * effects.factor + effects.delay

    def meets(self, fault: Fault, loads: Loads, idle: AbstractSet[int] = frozenset()) -> bool:
        """Whether a step involves the GPU at fault, or sends a token over the part at fault."""
        if isinstance(fault.component, Component):
            return not involved(loads, idle).isdisjoint(fault.component.members)
        flows = _Flows.of(loads).over_paths()
        if self.mode == "allgather":  # every path carries what any rank sends
            return bool(involved(loads, idle))
        return bool(self.placement.crosses(fault.component)[flows.sender, flows.receiver].any())

    def _compiled(self, faults: tuple[Fault, ...]) -> _Effects:
        effects = self._effects.get(faults)
        if effects is None:
            if len(self._effects) >= _KEPT_EFFECTS:
                self._effects.clear()
            effects = self._effects[faults] = _compile(faults, self.placement)
        return effects

    def _compute_ms(self, flows: _Flows, effects: _Effects, own_dummies: Mapping[int, int]) -> float:
        received = np.bincount(flows.receiver, flows.tokens, self.gpus)
        times = received * self.compute_ms
        for rank, (factor, delay) in effects.gpus.items():
            works = received[rank] > own_dummies.get(rank, 0)
            times[rank] = times[rank] * factor + (delay if works else 0.0)
        return float(times.max())

    def _routed_ms(self, flows: _Flows, effects: _Effects) -> float:
        sent, paths = flows.over_paths(), effects.paths
        dispatch, combine = (sent.sender, sent.receiver), (sent.receiver, sent.sender)
        healthy = sent.tokens * self._base_ms[dispatch] / 2
        if paths is None:
            return 2 * self._barrier_ms(dispatch, healthy, healthy, np.zeros_like(healthy))
        ways = [dispatch] if paths.symmetric else [dispatch, combine]
        barriers = [self._barrier_ms(way, healthy, healthy * paths.factor[way], paths.delay[way]) for way in ways]
        return 2 * sum(barriers) / len(barriers)

    def _barrier_ms(self, way: _Way, healthy: Floats, slow: Floats, delay: Floats) -> float:
        """What the slowest GPU takes to send or to receive one message an entry."""
        return max(self._link_ms(ranks, healthy, slow, delay) for ranks in way)

    def _link_ms(self, ranks: NDArray[np.intp], healthy: Floats, slow: Floats, delay: Floats) -> float:
        """The longest time that any of ``ranks`` (one a message) sends, or receives."""
        if self.transport == "serial":
            return float(np.bincount(ranks, slow + delay, self.gpus).max())
        # Concurrent flows share the link: a path slower by s among r hides until it alone outlasts the rest.
        slowest, longest = np.zeros(self.gpus), np.zeros(self.gpus)
        np.maximum.at(slowest, ranks, slow)
        np.maximum.at(longest, ranks, delay)
        return float((np.maximum(np.bincount(ranks, healthy, self.gpus), slowest) + longest).max())

    def _collective_ms(self, flows: _Flows, effects: _Effects) -> float:
        tokens = np.bincount(flows.sender, flows.tokens, self.gpus).max()
        if not tokens:
            return 0.0
        # Every path is crossed in both barriers, so a slow one is met in each, be it slow one way only.
        base = self._base_ms if effects.paths is None else self._base_ms * effects.paths.factor
        delay = 0.0 if effects.paths is None else float(effects.paths.delay.max())
        return float(tokens * base.max()) + 2 * delay


def _path_ms(path_ms: Mapping[HopClass, float], hop: HopClass) -> float:
    needed = set(DEFAULT_PATH_MS)
    if not needed <= set(path_ms) <= set(HOP_CLASSES) or not all(0 <= v < 1e6 for v in path_ms.values()):
        raise ValueError(
            f"path_ms needs {' and '.join(DEFAULT_PATH_MS)}, may have cross_rail and cross_leaf, each 0 to 1000000"
        )
    return path_ms.get(hop, path_ms["cross_host"])
