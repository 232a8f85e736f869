"""How long an engine step takes: pure arithmetic, no clock and no I/O.

T = fixed + max over GPUs of compute + max over GPUs of max(send, receive); see DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from app.emulator.noise import Noise, NoiseKey
from app.localization.faults import Fault

HopClass = Literal["same_host", "cross_host"]
Transport = Literal["serial", "shared"]
Mode = Literal["sparse", "allgather"]
Loads = Mapping[int, Mapping[int, int]]
"""sender -> receiver -> copies of tokens sent in one step; a token whose experts are on k GPUs is k copies."""

DEFAULT_PATH_MS: Mapping[HopClass, float] = {"same_host": 0.5, "cross_host": 1.0}
_HEALTHY = (1.0, 0.0)


def host_numbers(gpus: int, hosts: int | Sequence[str]) -> tuple[int, ...]:
    """Return the host number of every rank.

    Parameters
    ----------
    gpus : int
        Number of ranks.
    hosts : int or sequence of str
        A count, over which ranks are spread in order and as evenly as possible, or one host name per rank.

    Raises
    ------
    ValueError
        More hosts than GPUs, none, or a list of another length.
    """
    if isinstance(hosts, int):
        if not 1 <= hosts <= gpus:
            raise ValueError(f"hosts must be 1 to {gpus} (the number of GPUs), got {hosts}")
        return tuple(rank * hosts // gpus for rank in range(gpus))
    if len(hosts) != gpus:
        raise ValueError(f"hosts must name one host per GPU: {gpus}, not {len(hosts)}")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(hosts))}
    return tuple(numbers[name] for name in hosts)


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
class _Effects:
    """Faults compiled for look-up: (factor, added ms) of a GPU, or of a message from one rank to another."""

    gpus: dict[int, tuple[float, float]]
    paths: dict[tuple[int, int], tuple[float, float]]


@lru_cache(maxsize=64)
def _compile(faults: tuple[Fault, ...]) -> _Effects:
    gpus: dict[int, tuple[float, float]] = {}
    one_way: dict[tuple[int, int], tuple[float, float]] = {}
    for fault in faults:
        if fault.component.kind == "gpu":
            rank = fault.component.members[0]
            gpus[rank] = _worsen(gpus.get(rank, _HEALTHY), fault)
            continue
        u, v = fault.component.members
        for way in ((u, v), (v, u)):
            before = one_way.setdefault(way, _HEALTHY)
            if fault.affects(*way):
                one_way[way] = _worsen(before, fault)
    return _Effects(gpus, {way: _round_trip(one_way, way) for way in one_way})


def _worsen(before: tuple[float, float], fault: Fault) -> tuple[float, float]:
    return before[0] * fault.factor, before[1] + fault.delay_ms


def _round_trip(
    one_way: Mapping[tuple[int, int], tuple[float, float]], way: tuple[int, int]
) -> tuple[float, float]:
    # A token is dispatched u -> v and its result combined v -> u: half of its cost in each direction.
    there, back = one_way[way], one_way[way[::-1]]
    return (there[0] + back[0]) / 2, there[1] + back[1]


@dataclass(slots=True)
class _Link:
    """What one GPU sends, or receives, in a step."""

    healthy: float = 0.0
    serial: float = 0.0
    slowest: float = 0.0
    delay: float = 0.0

    def add(self, cost: float, factor: float, delay: float) -> None:
        self.healthy += cost
        self.serial += cost * factor + delay
        self.slowest = max(self.slowest, cost * factor)
        self.delay = max(self.delay, delay)

    def time(self, transport: Transport) -> float:
        if transport == "serial":
            return self.serial
        # Concurrent flows share the link: a path slower by s among r hides until it alone outlasts the rest.
        return max(self.healthy, self.slowest) + self.delay


@dataclass(frozen=True)
class LatencyModel:
    """The time of one lock-step engine step.

    Parameters
    ----------
    gpus : int
        Number of ranks.
    hosts : int or sequence of str
        See `host_numbers`.
    fixed_ms : float
        Part of every step, ms.
    compute_ms : float
        Per token that a GPU receives, ms.
    path_ms : mapping of {"same_host", "cross_host"} to float
        Per token over a path (dispatch and combine together), ms.
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
    hosts: int | Sequence[str] = 1
    fixed_ms: float = 3.0
    compute_ms: float = 1.25
    path_ms: Mapping[HopClass, float] = field(default_factory=lambda: dict(DEFAULT_PATH_MS))
    transport: Transport = "serial"
    mode: Mode = "sparse"
    noise: Noise = Noise()  # noqa: RUF009 - immutable
    _host: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.gpus < 2:
            raise ValueError(f"gpus must be at least 2, got {self.gpus}")
        for name, value in (("fixed_ms", self.fixed_ms), ("compute_ms", self.compute_ms)):
            if not 0 <= value < 1e6:
                raise ValueError(f"{name} must be 0 to 1000000, got {value}")
        if set(self.path_ms) != set(DEFAULT_PATH_MS) or not all(0 <= v < 1e6 for v in self.path_ms.values()):
            raise ValueError(f"path_ms needs {' and '.join(DEFAULT_PATH_MS)}, each 0 to 1000000")
        object.__setattr__(self, "_host", host_numbers(self.gpus, self.hosts))

    def hop_class(self, u: int, v: int) -> HopClass:
        """Return whether ranks ``u`` and ``v`` are on one host."""
        return "same_host" if self._host[u] == self._host[v] else "cross_host"

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
            Slowdowns; hard faults have no duration and are the engine's to act on.
        idle : set of int
            Ranks whose row is a dummy token: one to its own GPU meets no added delay there, see `involved`.

        Returns
        -------
        float
            Milliseconds.
        """
        effects = _compile(tuple(faults))
        network = self._collective_ms if self.mode == "allgather" else self._routed_ms
        return self.fixed_ms + self._compute_ms(loads, effects, idle) + network(loads, effects)

    def _compute_ms(self, loads: Loads, effects: _Effects, idle: AbstractSet[int]) -> float:
        received = [0] * self.gpus
        for row in loads.values():
            for receiver, tokens in row.items():
                received[receiver] += tokens
        times = [tokens * self.compute_ms for tokens in received]
        for rank, (factor, delay) in effects.gpus.items():
            own_dummy = loads.get(rank, {}).get(rank, 0) if rank in idle else 0
            times[rank] = times[rank] * factor + (delay if received[rank] > own_dummy else 0.0)
        return max(times)

    def _routed_ms(self, loads: Loads, effects: _Effects) -> float:
        sends = [_Link() for _ in range(self.gpus)]
        receives = [_Link() for _ in range(self.gpus)]
        host, same, cross = self._host, self.path_ms["same_host"], self.path_ms["cross_host"]
        for sender, row in loads.items():
            for receiver, tokens in row.items():
                if sender == receiver or not tokens:
                    continue
                cost = tokens * (same if host[sender] == host[receiver] else cross)
                factor, delay = effects.paths.get((sender, receiver), _HEALTHY)
                sends[sender].add(cost, factor, delay)
                receives[receiver].add(cost, factor, delay)
        return max(link.time(self.transport) for link in (*sends, *receives))

    def _collective_ms(self, loads: Loads, effects: _Effects) -> float:
        tokens = max((sum(row.values()) for row in loads.values()), default=0)
        if not tokens:
            return 0.0
        slowest = max(self.path_ms[hop] for hop in self._hop_classes())
        for (u, v), (factor, _) in effects.paths.items():
            slowest = max(slowest, self.path_ms[self.hop_class(u, v)] * factor)
        return tokens * slowest + max((delay for _, delay in effects.paths.values()), default=0.0)

    def _hop_classes(self) -> list[HopClass]:
        hosts = len(set(self._host))
        classes: list[HopClass] = ["cross_host"] if hosts > 1 else []
        return [*classes, "same_host"] if hosts < self.gpus else classes
