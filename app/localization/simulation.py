"""Many sessions against a simulated replica, with random faults or with given ones: accuracy and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.localization.binary import HEALTHY_MS, BinaryReplica, run
from app.localization.components import Component, gpu, path
from app.localization.errors import SettingsError
from app.localization.expectation import Comparison, compare
from app.localization.faults import Fault
from app.localization.placement import Placement
from app.localization.session import Session
from app.localization.settings import Settings, default_baseline
from app.localization.verdict import Verdict

FaultKind = Literal["gpu", "path", "mixed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated job: what was injected and what came out."""

    injected: frozenset[Component]
    named: frozenset[Component]
    phase1: int
    phase2: int

    @property
    def expected(self) -> frozenset[Component]:
        """The identifiable faults: a path at a slow GPU is masked."""
        slow = {c.members[0] for c in self.injected if c.kind == "gpu"}
        return frozenset(c for c in self.injected if c.kind == "gpu" or slow.isdisjoint(c.members))


def draw_faults(n: int, count: int, kind: FaultKind, rng: np.random.Generator) -> frozenset[Component]:
    """``count`` different components, uniformly; ``mixed`` tosses a coin for each."""
    chosen: set[Component] = set()
    while len(chosen) < count:
        is_gpu = kind == "gpu" or (kind == "mixed" and rng.random() < 0.5)
        u, v = (int(x) for x in rng.choice(n, size=2, replace=False))
        chosen.add(gpu(u) if is_gpu else path(u, v))
    return frozenset(chosen)


def run_binary(
    settings: Settings, slow: Iterable[Component], *, noise: float, slowdown: float, seed: tuple[int, ...]
) -> tuple[Session, Verdict]:
    """Drive one session to its verdict, with components that are all slower by ``slowdown``.

    See `app.localization.binary.BinaryReplica` for ``noise`` and ``seed``.
    """
    return run(settings, BinaryReplica([Fault(c, slowdown) for c in slow], noise=noise, seed=seed))


def simulate(
    *,
    n: int,
    k: int,
    strategy: str,
    faults: int,
    kind: FaultKind,
    trials: int,
    noise: float,
    seed: int,
    slowdown: float = 2.0,
) -> dict[str, Any]:
    """Accuracy and cost of a strategy over random faults.

    Returns
    -------
    dict
        ``exact_rate`` (every identifiable fault named, nothing else), ``false_suspects_per_trial``,
        ``missed_per_trial``, ``probes`` (distinct probes by phase) and ``pairwise`` (n(n-1)/2).

    Raises
    ------
    SettingsError
        A parameter out of range.
    """
    _check(n=n, faults=faults, kind=kind, trials=trials, noise=noise, slowdown=slowdown)
    settings = _settings(n, k, strategy, noise)
    results = [
        _trial(settings, faults, kind, noise=noise, slowdown=slowdown, seed=(seed, t)) for t in range(trials)
    ]
    return _summarise(results, n)


def simulate_given(
    faults: Sequence[Fault],
    *,
    n: int,
    k: int,
    strategy: str,
    trials: int,
    noise: float,
    seed: int,
    placement: Placement | None = None,
    topology_known: bool = True,
    history: bool = False,
) -> dict[str, Any]:
    """Accuracy and cost of a strategy over given faults; trials differ in their noise and in when faults strike.

    Parameters
    ----------
    placement : Placement, optional
        Where the ranks sit; needed for faults on shared parts.
    topology_known : bool
        Whether the strategy is told the hosts.
    history : bool
        Whether the strategy is told what a healthy probe takes, as after an earlier healthy job.

    Returns
    -------
    dict
        Beside what `simulate` gives: ``faults``, ``expected`` (names), ``symptoms_per_trial`` (paths named in the
        place of the shared part that slows them), ``outcomes`` and ``reasons`` (how many trials had each), and
        ``named`` (how many trials named it).

    Raises
    ------
    SettingsError
        A parameter out of range.
    """
    _check(n=n, faults=0, kind="mixed", trials=trials, noise=noise, slowdown=1.0)
    hosts = placement.hosts if placement is not None and topology_known else None
    settings = _settings(n, k, strategy, noise, hosts=hosts, history_ms=HEALTHY_MS if history else None)
    runs = [
        run(settings, BinaryReplica(faults, placement, noise=noise, seed=(seed, trial))) for trial in range(trials)
    ]
    verdicts = [verdict for _, verdict in runs]
    results = [
        compare(
            faults,
            outcome=verdict.outcome,
            named=verdict.names,
            codes=[reason["code"] for reason in verdict.reasons],
            placement=placement,
        )
        for verdict in verdicts
    ]
    return {
        "faults": [str(fault) for fault in faults],
        "expected": list(results[0].expected),
        **_summarise_given(results, [_phases(session) for session, _ in runs], n),
        "outcomes": dict(Counter(verdict.outcome for verdict in verdicts)),
        "reasons": dict(Counter(reason["code"] for verdict in verdicts for reason in verdict.reasons)),
        "named": dict(Counter(name for verdict in verdicts for name in verdict.names)),
    }


def _settings(n: int, k: int, strategy: str, noise: float, **more: Any) -> Settings:
    return Settings(
        gpus=n,
        k=k,
        strategy=strategy,
        repeats=3 if noise else 1,
        baseline=default_baseline(n, 2 if strategy == "pairwise" else k),
        **more,
    )


def _phases(session: Session) -> list[int]:
    """Phase of every probe."""
    return [probe.phase for probe in session.strategy.record.probes.values()]


def _trial(
    settings: Settings, count: int, kind: FaultKind, *, noise: float, slowdown: float, seed: tuple[int, int]
) -> Trial:
    slow = draw_faults(settings.gpus, count, kind, np.random.default_rng(seed))
    session, verdict = run_binary(settings, slow, noise=noise, slowdown=slowdown, seed=seed)
    phases = _phases(session)
    named = frozenset(Component(s.kind, tuple(s.members)) for s in verdict.suspects)  # type: ignore[arg-type]
    return Trial(slow, named, phases.count(1), phases.count(2))


def _summarise(trials: list[Trial], n: int) -> dict[str, Any]:
    count = len(trials)
    return {
        "exact_rate": sum(t.named == t.expected for t in trials) / count,
        "false_suspects_per_trial": sum(len(t.named - t.expected) for t in trials) / count,
        "missed_per_trial": sum(len(t.expected - t.named) for t in trials) / count,
        **_cost([t.phase1 for t in trials], [t.phase2 for t in trials], n),
    }


def _summarise_given(results: list[Comparison], phases: list[list[int]], n: int) -> dict[str, Any]:
    count = len(results)
    return {
        "exact_rate": sum(result.exact for result in results) / count,
        "false_suspects_per_trial": sum(len(result.wrong) for result in results) / count,
        "symptoms_per_trial": sum(len(result.symptoms) for result in results) / count,
        "missed_per_trial": sum(len(result.missed) for result in results) / count,
        **_cost([each.count(1) for each in phases], [each.count(2) for each in phases], n),
    }


def _cost(phase1: list[int], phase2: list[int], n: int) -> dict[str, Any]:
    totals = np.add(phase1, phase2)
    return {
        "probes": {
            "phase1": float(np.mean(phase1)),
            "phase2": float(np.mean(phase2)),
            "total_mean": float(np.mean(totals)),
            "total_p95": float(np.percentile(totals, 95)),
        },
        "pairwise": n * (n - 1) // 2,
    }


def _check(*, n: int, faults: int, kind: str, trials: int, noise: float, slowdown: float) -> None:
    possible = {"gpu": n, "path": n * (n - 1) // 2, "mixed": n}
    if kind not in possible:
        raise SettingsError("kind", f"must be gpu, path or mixed, got {kind!r}")
    if not 0 <= faults <= possible[kind]:
        raise SettingsError("faults", f"must be from 0 to {possible[kind]} for {kind} at n = {n}")
    if not 1 <= trials <= 100_000:
        raise SettingsError("trials", "must be from 1 to 100000")
    if not 0 <= noise <= 1:
        raise SettingsError("noise", "must be from 0 to 1")
    if not 1 <= slowdown <= 1000:
        raise SettingsError("slowdown", "must be from 1 to 1000")
