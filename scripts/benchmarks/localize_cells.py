"""What the localization benchmark measures: strategies, cells of trials, and the settings of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Section = Literal["figure3", "figure4", "noise", "costs"]


@dataclass(frozen=True)
class Contender:
    """A strategy in the benchmark.

    Parameters
    ----------
    strategy : str
        Its name in `app.localization.strategies.STRATEGIES`.
    k : int
        GPUs a probe, where the strategy has a fixed size.
    label : str
        In tables and pictures.
    share : float
        Of the trials of a plan: pairwise takes long.
    """

    strategy: str
    k: int
    label: str
    share: float = 1.0

    @property
    def id(self) -> str:
        """Short name; with k where several sizes compete."""
        return f"{self.strategy}-{self.k}" if self.strategy == "faultsense" else self.strategy


CONTENDERS = (
    Contender("pairwise", 2, "pairwise", share=0.1),
    Contender("faultsense", 4, "paper, k = 4"),
    Contender("faultsense", 8, "paper, k = 8"),
    Contender("adaptive", 8, "adaptive"),
)


@dataclass(frozen=True)
class Target:
    """Slowdowns that a comparison of costs asks for."""

    path: float
    gpu: float


@dataclass(frozen=True)
class Design:
    """Repeats and threshold of probes of k GPUs.

    Parameters
    ----------
    repeats : int
        Of which the median is taken.
    alpha : float
        Threshold, in the middle between healthy and slow.
    """

    repeats: int
    alpha: float


@dataclass(frozen=True)
class Plan:
    """How much is measured; the defaults take up to a quarter of an hour on two cores.

    Parameters
    ----------
    contenders : tuple of Contender
        Those whose strategy exists.
    sizes : tuple of int
        n of Figure 3.
    trials3 : int
        A size of Figure 3.
    trials4 : dict
        n of Figure 4 -> trials.
    faults4 : tuple of int
        d of Figure 4.
    noise_gpus, noise_trials : int
        n and trials under noise.
    noise_cases : tuple of (str, str)
        Transport and family of the noise.
    sigmas : tuple of float
        Standard deviations of the log of one reading.
    costs : dict
        n -> trials of the comparison of costs.
    cost_sigma : float
        Of the same.
    targets : tuple of Target
        What must be found, under noise and in the comparison of costs.
    seed : int
        Everything random comes from it.
    """

    contenders: tuple[Contender, ...]
    sizes: tuple[int, ...] = tuple(range(25, 326, 25))
    trials3: int = 5
    trials4: dict[int, int] = field(default_factory=lambda: {64: 50, 300: 4})
    faults4: tuple[int, ...] = (1, 2, 4)
    noise_gpus: int = 64
    noise_trials: int = 16
    noise_cases: tuple[tuple[str, str], ...] = (("serial", "own"), ("serial", "unknown"), ("shared", "own"))
    sigmas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    costs: dict[int, int] = field(default_factory=lambda: {64: 20, 300: 2})
    cost_sigma: float = 0.05
    targets: tuple[Target, ...] = (Target(3.0, 1.5), Target(10.0, 2.0))
    seed: int = 4100


@dataclass(frozen=True)
class Cell:
    """Trials that differ in their seed alone.

    Parameters
    ----------
    section : str
        Where its result goes.
    contender : Contender
        Who.
    n, faults : int
        GPUs, and how many components are slow.
    kind : {"gpu", "path", "mixed"}
        Of the faults.
    trials, seed : int
        Trials 0 to ``trials`` - 1 of that seed; none where the result is computed.
    transport, family : str or None
        Of the physics model; None: the binary model.
    sigma : float
        Of one reading.
    target : Target or None
        Slowdowns of the physics model.
    design : Design or None
        Of strategies that do not plan for themselves.
    """

    section: Section
    contender: Contender
    n: int
    faults: int
    kind: str
    trials: int
    seed: int
    transport: str | None = None
    family: str | None = None
    sigma: float = 0.0
    target: Target | None = None
    design: Design | None = None

    def facts(self) -> dict[str, Any]:
        """What a row of results says of it."""
        row: dict[str, Any] = {
            "strategy": self.contender.id,
            "n": self.n,
            "faults": self.faults,
            "kind": self.kind,
        }
        row |= {"trials": self.trials, "seed": self.seed}
        if self.target is not None:
            row |= {"transport": self.transport, "family": self.family, "sigma": self.sigma}
            row |= {"path_slowdown": self.target.path, "gpu_slowdown": self.target.gpu}
        if self.design is not None:
            row |= {"repeats": self.design.repeats, "alpha": round(self.design.alpha, 4)}
        return row


# A median of fewer readings lets a burst through.
LEAST_REPEATS, MOST_REPEATS = 3, 15
# The median of many normal readings scatters as pi / 2 times fewer of them would in the mean.
MEDIAN_FACTOR = math.pi / 2


def clique_design(k: int, target: Target, transport: str, sigma: float) -> Design | None:
    """The fewest repeats of probes of k GPUs that reach a target with 1 % false alarms and 1 % misses a probe.

    Returns
    -------
    Design or None
        None: not even with the most repeats.
    """
    from app.localization.adaptive.costs import certified_effect

    effect = clique_effect(k, target, transport)
    if effect == 0:
        return None
    needed = math.ceil(MEDIAN_FACTOR * (certified_effect(sigma, 1) / effect) ** 2)
    repeats = max(LEAST_REPEATS, needed + 1 - needed % 2)  # an odd number has a middle one
    return Design(repeats, math.exp(effect / 2)) if repeats <= MOST_REPEATS else None


def best_alpha(k: int, target: Target, transport: str) -> Design:
    """The repeats of a job by default, with the threshold for a target; for one that cannot show, alpha 1.3."""
    effect = clique_effect(k, target, transport)
    return Design(LEAST_REPEATS, math.exp(effect / 2) if effect else 1.3)


def clique_effect(k: int, target: Target, transport: str) -> float:
    """Rise of log T of a probe of k GPUs by the target that shows less; 0 where one does not show."""
    gpu, path = f"gpu:0*{target.gpu}", f"path:0-1*{target.path}"
    slower = min(clique_ms(k, transport, fault) for fault in (gpu, path))
    return math.log(slower / clique_ms(k, transport))


def clique_ms(k: int, transport: str, *faults: str) -> float:
    """A step of a probe of k GPUs in the physics model."""
    from app.localization.adaptive.costs import Costs
    from app.localization.faults import parse_faults
    from app.localization.physics import PhysicsReplica
    from app.localization.shapes import Clique

    given, tokens = parse_faults(faults, k), clique_tokens(k)
    replica = PhysicsReplica(k, given, Costs(), transport, sequence_tokens=tokens)  # type: ignore[arg-type]
    return replica.step_ms(Clique(tuple(range(k))))


def clique_tokens(k: int) -> int:
    """Tokens a send of a probe of k GPUs, as the simulator has them."""
    from app.localization.simulation import Setup

    return Setup(n=2 * k, strategy="faultsense", k=k, model="physics").world().sequence_tokens


def cells(plan: Plan) -> list[Cell]:
    """Everything that a plan measures."""
    return [*_figure3(plan), *_figure4(plan), *_noise(plan), *_costs(plan)]


# Jobs on more GPUs take many seconds a trial.
SMALL = 100


def _some(contender: Contender, trials: int) -> int:
    return max(1, round(trials * contender.share))


def _figure3(plan: Plan) -> Iterator[Cell]:
    for contender in plan.contenders:
        for n in plan.sizes:
            yield Cell("figure3", contender, n, 1, "mixed", _some(contender, plan.trials3), plan.seed + 3)


def _figure4(plan: Plan) -> Iterator[Cell]:
    for n, trials in plan.trials4.items():
        for contender in plan.contenders:
            for kind in ("gpu", "path", "mixed"):
                for faults in plan.faults4:
                    count = _some(contender, trials)
                    yield Cell("figure4", contender, n, faults, kind, count, plan.seed + 4)


def _noise(plan: Plan) -> Iterator[Cell]:
    """A healthy replica and one fault; as many repeats as a job has by default."""
    for target in plan.targets:
        for transport, family in plan.noise_cases:
            for contender in plan.contenders:
                trials, design = _some(contender, plan.noise_trials), None
                if contender.strategy != "adaptive":
                    design = best_alpha(contender.k, target, transport)
                for sigma in plan.sigmas:
                    for faults in (0, 1):
                        yield Cell("noise", contender, plan.noise_gpus, faults, "mixed", trials, plan.seed + 5,
                                   transport, family, sigma, target, design)  # fmt: skip


def _costs(plan: Plan) -> Iterator[Cell]:
    for target in plan.targets:
        for n, trials in plan.costs.items():
            for transport in ("serial", "shared"):
                for contender in plan.contenders:
                    yield from _cost_cells(plan, contender, n, trials, (target, transport))


def _cost_cells(
    plan: Plan, contender: Contender, n: int, trials: int, wanted: tuple[Target, str]
) -> Iterator[Cell]:
    """One without trials where the target is out of reach, or where the cost follows from n."""
    target, transport = wanted
    design, count = None, _some(contender, trials)
    if contender.strategy != "adaptive":
        design = clique_design(contender.k, target, transport, plan.cost_sigma)
        if design is None or is_computed(contender, n):
            count = 0
    faults = (0, 1, 2) if n <= SMALL else (0, 1)
    for slow in faults if count else faults[:1]:
        yield Cell("costs", contender, n, slow, "mixed", count, plan.seed + 6,
                   transport, "own", plan.cost_sigma, target, design)  # fmt: skip


def is_computed(contender: Contender, n: int) -> bool:
    """Whether a healthy job is only computed: its cost follows from n, and a trial would take a minute."""
    return contender.strategy == "pairwise" and n > SMALL


def available(contenders: Sequence[Contender] = CONTENDERS) -> tuple[Contender, ...]:
    """Those whose strategy exists."""
    from app.localization.strategies import STRATEGIES

    return tuple(each for each in contenders if each.strategy in STRATEGIES)
