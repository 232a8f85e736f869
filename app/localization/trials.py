"""One simulated job: what was at fault, what the verdict names, and what it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from app.localization.adaptive.costs import Costs, Transport
from app.localization.binary import BinaryReplica
from app.localization.components import Component, gpu, path
from app.localization.errors import SettingsError
from app.localization.events import Event
from app.localization.expectation import Comparison, compare
from app.localization.faults import Fault
from app.localization.physics import NoiseFamily, PhysicsReplica, make_noise
from app.localization.placement import Placement, SharedPart
from app.localization.probes import Probe
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.strategies import make_strategy
from app.localization.verdict import Verdict

Model = Literal["binary", "physics"]
FaultKind = Literal["gpu", "path", "mixed"]

# What an engine is told about a and b may be wrong by as much, where it does not know the noise either.
WRONG_COSTS = (0.7, 1.3)
MAX_DRAWS = 1000


class Replica(Protocol):
    """Answers probes."""

    def answer(self, probe: Probe, number: int, /) -> Event:
        """The event that answers measurement ``number`` (from 0) of a session."""


def run(settings: Settings, replica: Replica) -> tuple[Session, Verdict]:
    """Drive one session to its verdict."""
    session = Session(settings)
    while not isinstance(upcoming := session.next(), Verdict):
        session.observe(replica.answer(upcoming, session.done))
    return session, upcoming


def run_binary(
    settings: Settings, slow: Iterable[Component], *, noise: float, slowdown: float, seed: tuple[int, ...]
) -> tuple[Session, Verdict]:
    """Drive one session to its verdict, with components that are all slower by ``slowdown``.

    See `app.localization.binary.BinaryReplica` for ``noise`` and ``seed``.
    """
    return run(settings, BinaryReplica([Fault(c, slowdown) for c in slow], noise=noise, seed=seed))


def draw_faults(n: int, count: int, kind: FaultKind, rng: np.random.Generator) -> frozenset[Component]:
    """``count`` different components, uniformly; ``mixed`` tosses a coin for each."""
    chosen: set[Component] = set()
    while len(chosen) < count:
        is_gpu = kind == "gpu" or (kind == "mixed" and rng.random() < 0.5)
        u, v = (int(x) for x in rng.choice(n, size=2, replace=False))
        chosen.add(gpu(u) if is_gpu else path(u, v))
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """``count`` different slow components a trial, by the factor of their kind."""

    count: int
    kind: FaultKind
    gpu_slowdown: float
    path_slowdown: float

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Fault, ...]:
        """Those of one trial."""
        chosen = sorted(draw_faults(n, self.count, self.kind, rng))
        return tuple(Fault(c, self.gpu_slowdown if c.kind == "gpu" else self.path_slowdown) for c in chosen)


@dataclass(frozen=True, slots=True)
class RandomParts:
    """Slow parts that GPUs share, or slow GPUs, at random places: no two of a trial concern the same GPU.

    Parameters
    ----------
    kinds : tuple of str
        What may be slow, ``gpu`` or kinds of `SharedPart`; each at most once a trial.
    count : int
        How many a trial, at most as many as kinds.
    placement : Placement
        Where the ranks sit.
    gpu_slowdown, part_slowdown : float
        Factors of GPUs, and of the paths over a part.
    """

    kinds: tuple[str, ...]
    count: int
    placement: Placement
    gpu_slowdown: float
    part_slowdown: float

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Fault, ...]:
        """Those of one trial.

        Raises
        ------
        SettingsError
            When no places are found that do not overlap.
        """
        for _ in range(MAX_DRAWS):
            chosen = [self._one(str(kind), n, rng) for kind in rng.permutation(self.kinds)[: self.count]]
            ranks = [rank for _, at in chosen for rank in at]
            if len(ranks) == len(set(ranks)):
                return tuple(fault for fault, _ in chosen)
        raise SettingsError("kinds", f"{self.count} of {', '.join(self.kinds)} overlap wherever they are")

    def _one(self, kind: str, n: int, rng: np.random.Generator) -> tuple[Fault, tuple[int, ...]]:
        if kind == "gpu":
            rank = int(rng.integers(n))
            return Fault(gpu(rank), self.gpu_slowdown), (rank,)
        parts = [SharedPart(kind, name) for name in self.placement.names(kind)]  # type: ignore[arg-type]
        parts = [part for part in parts if self.placement.crosses(part).any()]
        if not parts:
            raise SettingsError("kinds", f"no {kind} in this topology has a path over it")
        part = parts[int(rng.integers(len(parts)))]
        return Fault(part, self.part_slowdown), self.placement.ranks_at(part)


@dataclass(frozen=True, slots=True)
class World:
    """How a simulated replica answers.

    Parameters
    ----------
    model : {"binary", "physics"}
        `BinaryReplica` or `PhysicsReplica`.
    noise : float
        Sigma of one reading.
    transport : {"serial", "shared"}
        Of the physics model.
    noise_family : {"own", "unknown"}
        Of the physics model. With ``unknown`` the costs of a token, too, are others than the strategy is told: a
        and b each by a factor from `WRONG_COSTS`.
    sequence_tokens : int
        Of the physics model, see `PhysicsReplica`.
    placement : Placement, optional
        Where the ranks sit, for faults on shared parts.
    """

    model: Model = "binary"
    noise: float = 0.0
    transport: Transport = "serial"
    noise_family: NoiseFamily = "own"
    sequence_tokens: int = 1
    placement: Placement | None = None

    def replica(
        self, gpus: int, faults: Iterable[Fault], seed: tuple[int, int], rng: np.random.Generator
    ) -> Replica:
        """A replica for one trial: the binary model draws from ``seed``, the other from ``rng``."""
        if self.model == "binary":
            return BinaryReplica(faults, self.placement, noise=self.noise, seed=seed)
        costs = Costs()
        if self.noise_family == "unknown":
            a, b = rng.uniform(*WRONG_COSTS, size=2)
            costs = replace(costs, compute_ms=costs.compute_ms * a, path_ms=costs.path_ms * b)
        noise = make_noise(self.noise_family, self.noise, rng)
        return PhysicsReplica(
            gpus,
            faults,
            costs,
            self.transport,
            noise,
            sequence_tokens=self.sequence_tokens,
            placement=self.placement,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated job: how right its verdict was, and what it took.

    Parameters
    ----------
    comparison : Comparison
        The verdict held against what was injected.
    outcome : str
        See `Verdict`.
    named, codes : tuple of str
        Suspects, and the codes of its reasons.
    phase1, phase2 : int
        Distinct probes.
    measurements : int
        A measurement is one probe, once.
    path_units : int
        Tokens times directed paths, of a step a measurement.
    seconds : float
        Of all measurements.
    """

    comparison: Comparison
    outcome: str
    named: tuple[str, ...]
    codes: tuple[str, ...]
    phase1: int
    phase2: int
    measurements: int
    path_units: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that a trial depends on besides its number.

    Parameters
    ----------
    settings : Settings
        What the strategy is told; its seed is the trial's.
    world : World
        How the replica answers.
    faults : RandomFaults, RandomParts or tuple of Fault
        To be drawn, or given.
    seed : int
        Everything random comes from it and the number of the trial.
    """

    settings: Settings
    world: World
    faults: RandomFaults | RandomParts | tuple[Fault, ...]
    seed: int

    def check(self) -> None:
        """Raise what every trial would raise.

        Raises
        ------
        SettingsError
            An unknown strategy, or faults that the model does not know.
        """
        make_strategy(self.settings)
        given = self.faults if isinstance(self.faults, tuple) else ()
        self.world.replica(self.settings.gpus, given, (self.seed, 0), np.random.default_rng(0))

    def trial(self, number: int) -> Trial:
        """Run one."""
        seed = self.seed, number
        of_faults, of_replica, of_strategy = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
        n, faults = self.settings.gpus, self.faults
        if not isinstance(faults, tuple):
            faults = faults.draw(n, of_faults)
        settings = replace(self.settings, seed=int(of_strategy.integers(2**63 - 1)))
        session, verdict = run(settings, self.world.replica(n, faults, seed, of_replica))
        return self._judged(faults, session, verdict)

    def _judged(self, faults: tuple[Fault, ...], session: Session, verdict: Verdict) -> Trial:
        named, codes = tuple(verdict.names), tuple(reason["code"] for reason in verdict.reasons)
        placement = self.world.placement
        record = session.strategy.record
        phases = [probe.phase for probe in record.probes.values()]
        return Trial(
            compare(
                faults,
                outcome=verdict.outcome,
                named=named,
                codes=codes,
                equals={suspect.name: suspect.alternatives for suspect in verdict.suspects},
                placement=placement,
            ),
            verdict.outcome,
            named,
            codes,
            phases.count(1),
            phases.count(2),
            record.measurements,
            record.path_units * self.world.sequence_tokens,
            verdict.cost["seconds"],
        )
