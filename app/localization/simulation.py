"""Sessions against a simulated replica in the binary model: a probe is slow when it contains a slow component."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.localization.components import Component, gpu, path
from app.localization.errors import SettingsError
from app.localization.events import measured
from app.localization.session import Session
from app.localization.settings import Settings, default_baseline
from app.localization.verdict import Verdict

FaultKind = Literal["gpu", "path", "mixed"]
HEALTHY_MS = 20.0
BURST_RATE, BURST_FACTOR = 0.05, 2.0


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
    """Drive one session to its verdict.

    Parameters
    ----------
    settings : Settings
        The session's settings.
    slow : iterable of Component
        The slow components.
    noise : float
        Sigma of the lognormal noise; above zero, 5 % of the measurements also double (bursts).
    slowdown : float
        Factor on a probe that contains a slow component, whatever its size.
    seed : tuple of int
        Each measurement's noise comes from (seed, measurement number).
    """
    faults = [frozenset(c.members) for c in slow]
    session = Session(settings)
    while not isinstance(upcoming := session.next(), Verdict):
        ms = HEALTHY_MS * (slowdown if any(f.issubset(upcoming.members) for f in faults) else 1.0)
        ms *= _noise(noise, (*seed, session.done))
        session.observe(measured(upcoming, tbt_ms=ms, ttft_ms=ms, wall_ms=ms))
    return session, upcoming


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
    settings = Settings(
        gpus=n,
        k=k,
        strategy=strategy,
        repeats=3 if noise else 1,
        baseline=default_baseline(n, 2 if strategy == "pairwise" else k),
    )
    results = [
        _trial(settings, faults, kind, noise=noise, slowdown=slowdown, seed=(seed, t)) for t in range(trials)
    ]
    return _summarise(results, n)


def _trial(
    settings: Settings, count: int, kind: FaultKind, *, noise: float, slowdown: float, seed: tuple[int, int]
) -> Trial:
    slow = draw_faults(settings.gpus, count, kind, np.random.default_rng(seed))
    session, verdict = run_binary(settings, slow, noise=noise, slowdown=slowdown, seed=seed)
    phases = [probe.phase for probe in session.strategy.ledger.probes.values()]
    named = frozenset(Component(s.kind, tuple(s.members)) for s in verdict.suspects)  # type: ignore[arg-type]
    return Trial(slow, named, phases.count(1), phases.count(2))


def _noise(sigma: float, seed: tuple[int, ...]) -> float:
    if not sigma:
        return 1.0
    rng = np.random.default_rng(seed)
    burst = BURST_FACTOR if rng.random() < BURST_RATE else 1.0
    return float(np.exp(sigma * rng.standard_normal())) * burst


def _summarise(trials: list[Trial], n: int) -> dict[str, Any]:
    count = len(trials)
    totals = [t.phase1 + t.phase2 for t in trials]
    return {
        "exact_rate": sum(t.named == t.expected for t in trials) / count,
        "false_suspects_per_trial": sum(len(t.named - t.expected) for t in trials) / count,
        "missed_per_trial": sum(len(t.expected - t.named) for t in trials) / count,
        "probes": {
            "phase1": float(np.mean([t.phase1 for t in trials])),
            "phase2": float(np.mean([t.phase2 for t in trials])),
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
