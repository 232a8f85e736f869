"""Many sessions against a simulated replica, with random faults or with given ones: accuracy and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, get_args

import numpy as np

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs, Transport
from app.localization.adaptive.planner import Targets
from app.localization.binary import HEALTHY_MS
from app.localization.errors import SettingsError
from app.localization.faults import Fault
from app.localization.intervals import mean_interval, rate_interval
from app.localization.physics import NoiseFamily, PhysicsReplica
from app.localization.placement import Placement
from app.localization.pool import Done, cores, run_trials
from app.localization.settings import Settings, default_baseline, default_probe_size
from app.localization.shapes import Clique
from app.localization.trials import Experiment, FaultKind, Model, RandomFaults, RandomParts, Trial, World

# What random faults slow by, unless stated: GPUs and paths.
SLOWDOWNS: dict[Model, tuple[float, float]] = {"binary": (2.0, 2.0), "physics": (1.5, 3.0)}
# A trial takes one core about 5 ms and n^2 / 80 more; starting processes takes less than so many together.
WORTH_PROCESSES_MS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What random and given faults have in common.

    Parameters
    ----------
    n : int
        GPUs.
    strategy : str
        Its name.
    k : int, optional
        GPUs a probe; by default `default_probe_size`. Strategy ``adaptive`` chooses its own probes, unless it is
        given: then it has no others than of k GPUs.
    trials : int
        Simulated jobs, 1..100000.
    seed : int
        A trial depends on it and on its number, on nothing else.
    noise : float
        Sigma of one reading, 0..1; above zero there are bursts as well.
    model : {"binary", "physics"}
        See `app.localization.binary` and `app.localization.physics`. In the physics model a step of a probe with k
        GPUs, of strategies that know no loads, carries as many tokens a rank as take as long as its fixed part.
    transport, noise_family : str
        Of the physics model, see `World`.
    costs_given : bool
        Whether strategy ``adaptive`` is told what a step costs; a job over HTTP is not, and measures it first.
    processes : int
        The result is the same with any number; see `useful_processes`.
    done : callable, optional
        Told how many trials are done, for a progress bar.

    Raises
    ------
    SettingsError
        A parameter out of range.
    """

    n: int
    strategy: str
    k: int | None = None
    trials: int = 100
    seed: int = 1
    noise: float = 0.0
    model: Model = "binary"
    transport: Transport = "serial"
    noise_family: NoiseFamily = "own"
    costs_given: bool = True
    processes: int = 1
    done: Done | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise SettingsError("model", f"must be binary or physics, got {self.model!r}")
        if self.transport not in ("serial", "shared"):
            raise SettingsError("transport", f"must be serial or shared, got {self.transport!r}")
        if self.noise_family not in get_args(NoiseFamily):
            raise SettingsError("noise_family", f"must be own or unknown, got {self.noise_family!r}")
        if self.model == "binary" and self.noise_family != "own":
            raise SettingsError("noise_family", "the binary model has its own only")
        if not (self.costs_given or (self.model == "physics" and self.adaptive)):
            raise SettingsError("costs_given", "only strategy adaptive measures costs, in the physics model")
        if not 1 <= self.trials <= 100_000:
            raise SettingsError("trials", "must be from 1 to 100000")
        if not 0 <= self.noise <= 1:
            raise SettingsError("noise", "must be from 0 to 1")

    @property
    def adaptive(self) -> bool:
        """Whether the strategy is told costs and targets, and chooses loads."""
        return self.strategy == "adaptive"

    @property
    def probe_size(self) -> int:
        """GPUs a probe of a strategy that has a fixed size."""
        if self.strategy == "pairwise":
            return 2
        return default_probe_size(self.n) if self.k is None else self.k

    def world(self, placement: Placement | None = None) -> World:
        """How the replica answers."""
        sequence_tokens = 1
        if self.model == "physics" and not self.adaptive:
            sequence_tokens = max(1, round(Costs().balanced_tokens / self.probe_size))
        return World(self.model, self.noise, self.transport, self.noise_family, sequence_tokens, placement)

    def settings(self, *, gpu_slowdown: float | None = None, path_slowdown: float | None = None) -> Settings:
        """What the strategy is told; slowdowns to look for, where they are known and above 1."""
        return Settings(
            gpus=self.n,
            k=default_probe_size(self.n) if self.k is None else self.k,
            strategy=self.strategy,
            repeats=3 if self.noise else 1,
            baseline=default_baseline(self.n, self.probe_size),
            adaptive=self._assumptions(_targets(gpu_slowdown, path_slowdown)) if self.adaptive else None,
        )

    def _assumptions(self, targets: Targets) -> Assumptions:
        fixed_size = self.k is not None
        if self.model == "physics":
            costs = Costs(sigma=self.noise) if self.costs_given else None
            return Assumptions(costs, targets, self.transport, fixed_size=fixed_size)
        costs = Costs(fixed_ms=HEALTHY_MS, compute_ms=0.0, path_ms=0.0, sigma=self.noise)
        return Assumptions(costs, targets, "undiluted", trusted=not fixed_size, fixed_size=fixed_size)

    def run(self, experiment: Experiment) -> list[Trial]:
        """All trials."""
        experiment.check()
        return run_trials(experiment.trial, self.trials, processes=self.processes, done=self.done)


def useful_processes(n: int, trials: int) -> int:
    """All cores, or none but this process where others would not pay.

    Processes are started anew: a program that uses them must be importable (``if __name__ == "__main__"``).
    """
    pay = trials * (5 + n * n / 80) >= WORTH_PROCESSES_MS
    return max(1, min(cores(), trials)) if pay else 1


def simulate(
    *,
    faults: int,
    kind: FaultKind,
    slowdown: float | None = None,
    gpu_slowdown: float | None = None,
    path_slowdown: float | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Accuracy and cost of a strategy over random faults.

    Parameters
    ----------
    faults : int
        Different slow components a trial.
    kind : {"gpu", "path", "mixed"}
        What they are.
    slowdown : float, optional
        Factor of GPUs and paths, 1..1000.
    gpu_slowdown, path_slowdown : float, optional
        Of one kind; by default `SLOWDOWNS`. Strategy ``adaptive`` is told to look for these.
    **setup
        See `Setup`.

    Returns
    -------
    dict
        Rates over the trials, each with its exact 95 % interval (``exact_rate_interval`` ...): ``exact_rate``
        (every identifiable fault named, nothing else), ``false_accusation_rate`` (anything else named),
        ``miss_rate`` (an identifiable fault not named). ``false_suspects_per_trial``, ``missed_per_trial``.
        ``measurements_mean`` (one probe, once) with its 95 % interval (None for one trial), ``measurements_p95``,
        ``path_units_mean`` (tokens times directed paths, of one step a measurement), ``seconds_mean``. ``probes``
        (distinct ones by phase) and ``pairwise`` (n(n-1)/2).

    Raises
    ------
    SettingsError
        A parameter out of range.
    """
    given = Setup(**setup)
    by_default = SLOWDOWNS[given.model] if slowdown is None else (slowdown, slowdown)
    gpu = by_default[0] if gpu_slowdown is None else gpu_slowdown
    path = by_default[1] if path_slowdown is None else path_slowdown
    _check_faults(given.n, faults, kind)
    for name, value in (("slowdown", slowdown), ("gpu_slowdown", gpu), ("path_slowdown", path)):
        if value is not None and not 1 <= value <= 1000:
            raise SettingsError(name, "must be from 1 to 1000")
    settings = given.settings(gpu_slowdown=gpu, path_slowdown=path)
    drawn = RandomFaults(faults, kind, gpu_slowdown=gpu, path_slowdown=path)
    return _summarise(given.run(Experiment(settings, given.world(), drawn, given.seed)), given.n)


def simulate_given(
    faults: Sequence[Fault],
    *,
    placement: Placement | None = None,
    topology_known: bool = True,
    history: bool = False,
    **setup: Any,
) -> dict[str, Any]:
    """Accuracy and cost of a strategy over given faults; trials differ in noise, and in when faults strike.

    Parameters
    ----------
    faults : sequence of Fault
        The physics model takes steady slowdowns.
    placement : Placement, optional
        Where the ranks sit; needed for faults on shared parts.
    topology_known : bool
        Whether the strategy is told the hosts.
    history : bool
        Whether the strategy is told what a healthy probe takes, as after an earlier healthy job.
    **setup
        See `Setup`.

    Returns
    -------
    dict
        Beside what `simulate` gives: ``faults``, ``expected`` (names), ``symptoms_per_trial`` (paths named in the
        place of the shared part that slows them; they are no false suspects), ``outcomes`` and ``reasons`` (how
        many trials had each), and ``named`` (how many trials named it).

    Raises
    ------
    SettingsError
        A parameter out of range, or a fault that the model does not know.
    """
    given = Setup(**setup)
    settings = replace(
        _knowing(given.settings(), placement if topology_known else None),
        history_ms=_history_ms(given) if history else None,
    )
    trials = given.run(Experiment(settings, given.world(placement), tuple(faults), given.seed))
    return {
        "faults": [str(fault) for fault in faults],
        "expected": list(trials[0].comparison.expected),
        **_summarise(trials, given.n),
        **_answers(trials),
        "named": dict(Counter(name for trial in trials for name in trial.named)),
    }


def simulate_parts(
    kinds: Sequence[str],
    *,
    placement: Placement,
    count: int = 1,
    gpu_slowdown: float | None = None,
    part_slowdown: float | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Accuracy and cost of a strategy that knows the topology over faults of parts that GPUs share.

    Parameters
    ----------
    kinds : sequence of str
        See `RandomParts`.
    placement : Placement
        Where the ranks sit.
    count : int
        Faults a trial.
    gpu_slowdown, part_slowdown : float, optional
        By default those of GPUs and paths in `SLOWDOWNS`.
    **setup
        See `Setup`; the physics model.

    Returns
    -------
    dict
        What `simulate` gives, and ``outcomes`` and ``reasons``.

    Raises
    ------
    SettingsError
        A parameter out of range, or a kind that the topology does not have.
    """
    given = Setup(**setup)
    gpu, part = SLOWDOWNS["physics"]
    gpu, part = gpu_slowdown or gpu, part_slowdown or part
    drawn = RandomParts(tuple(kinds), count, placement, gpu, part)
    settings = _knowing(given.settings(), placement)
    trials = given.run(Experiment(settings, given.world(placement), drawn, given.seed))
    return {**_summarise(trials, given.n), **_answers(trials)}


def _knowing(settings: Settings, placement: Placement | None) -> Settings:
    """The settings of a strategy that is told a topology."""
    if placement is None:
        return settings
    return replace(settings, hosts=placement.hosts, shared=placement.shared)


def _answers(trials: Sequence[Trial]) -> dict[str, Any]:
    return {
        "symptoms_per_trial": fmean(len(trial.comparison.symptoms) for trial in trials),
        "outcomes": dict(Counter(trial.outcome for trial in trials)),
        "reasons": dict(Counter(code for trial in trials for code in trial.codes)),
    }


def _history_ms(setup: Setup) -> float:
    """What a healthy probe takes."""
    if setup.model == "binary":
        return HEALTHY_MS
    if setup.adaptive:
        raise SettingsError("history", "strategy adaptive has no probe that is the same in every job")
    world = setup.world()
    healthy = PhysicsReplica(setup.n, [], Costs(), setup.transport, sequence_tokens=world.sequence_tokens)
    return healthy.step_ms(Clique(tuple(range(min(setup.n, setup.probe_size)))))


def _targets(gpu: float | None, path: float | None) -> Targets:
    """Slowdowns to look for; a factor of 1 is none."""
    wanted = {"gpu": gpu, "path": path}
    return Targets(**{name: value for name, value in wanted.items() if value is not None and value > 1})


def _summarise(trials: list[Trial], n: int) -> dict[str, Any]:
    compared = [trial.comparison for trial in trials]
    measurements = [trial.measurements for trial in trials]
    return {
        **_rate("exact_rate", [each.exact for each in compared]),
        **_rate("false_accusation_rate", [bool(each.wrong) for each in compared]),
        **_rate("miss_rate", [bool(each.missed) for each in compared]),
        "false_suspects_per_trial": fmean(len(each.wrong) for each in compared),
        "missed_per_trial": fmean(len(each.missed) for each in compared),
        "measurements_mean": fmean(measurements),
        "measurements_mean_interval": mean_interval(measurements),
        "measurements_p95": float(np.percentile(measurements, 95)),
        "path_units_mean": fmean(trial.path_units for trial in trials),
        "seconds_mean": fmean(trial.seconds for trial in trials),
        "probes": _probes([trial.phase1 for trial in trials], [trial.phase2 for trial in trials]),
        "pairwise": n * (n - 1) // 2,
    }


def _rate(name: str, hits: list[bool]) -> dict[str, Any]:
    return {name: fmean(hits), f"{name}_interval": rate_interval(sum(hits), len(hits))}


def _probes(phase1: list[int], phase2: list[int]) -> dict[str, float]:
    totals = np.add(phase1, phase2)
    return {
        "phase1": float(np.mean(phase1)),
        "phase2": float(np.mean(phase2)),
        "total_mean": float(np.mean(totals)),
        "total_p95": float(np.percentile(totals, 95)),
    }


def _check_faults(n: int, faults: int, kind: str) -> None:
    possible = {"gpu": n, "path": n * (n - 1) // 2, "mixed": n}
    if kind not in possible:
        raise SettingsError("kind", f"must be gpu, path or mixed, got {kind!r}")
    if not 0 <= faults <= possible[kind]:
        raise SettingsError("faults", f"must be from 0 to {possible[kind]} for {kind} at n = {n}")
