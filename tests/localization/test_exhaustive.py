"""Exactness, noise-free: every identifiable fault is named and nothing else."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.components import Component, gpu, path
from app.localization.errors import SettingsError
from app.localization.settings import Settings
from app.localization.simulation import simulate
from app.localization.trials import draw_faults, run_binary


def unmasked(faults: tuple[Component, ...]) -> bool:
    slow = {c.members[0] for c in faults if c.kind == "gpu"}
    return all(c.kind == "gpu" or slow.isdisjoint(c.members) for c in faults)


def fault_sets(n: int, largest: int) -> list[tuple[Component, ...]]:
    components = [gpu(r) for r in range(n)] + [path(u, v) for u, v in combinations(range(n), 2)]
    return [f for d in range(largest + 1) for f in combinations(components, d) if unmasked(f)]


QUICK = [(n, k, severity) for n, k in ((4, 2), (5, 2), (6, 3), (7, 3)) for severity in (1.5, 2.0, 100.0)]
LONG = [(8, k, severity) for k in (2, 4) for severity in (1.5, 2.0, 100.0)]


@pytest.mark.parametrize(
    ("n", "k", "severity"), [*QUICK, *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in LONG)]
)
def test_all_fault_sets_up_to_two(n: int, k: int, severity: float) -> None:
    """At n = 8, k = 4 every pair of faults is identifiable but for paths at a slow GPU: d <= n - k."""
    session = Settings(gpus=n, k=k, repeats=1, baseline="low_decile")
    wrong = []
    for faults in fault_sets(n, 2):
        _, verdict = run_binary(session, faults, noise=0, slowdown=severity, seed=(1,))
        if sorted(verdict.names) != sorted(map(str, faults)):
            wrong.append((list(map(str, faults)), verdict.names))
    assert not wrong


@given(n=st.integers(4, 64), data=st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_is_accused_on_a_healthy_replica(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, min(16, n)))
    _, verdict = run_binary(Settings(gpus=n, k=k, repeats=1), [], noise=0, slowdown=2, seed=(1,))
    assert not verdict.suspects
    assert verdict.outcome == ("healthy" if k < n else "inconclusive")


@pytest.mark.parametrize("kind", ["gpu", "path", "mixed"])
@pytest.mark.parametrize("faults", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_simulate_is_exact_without_noise(kind: str, faults: int) -> None:
    result = simulate(n=64, k=8, strategy="faultsense", faults=faults, kind=kind, trials=10, noise=0, seed=7)
    assert result["exact_rate"] == 1.0
    assert result["false_suspects_per_trial"] == result["missed_per_trial"] == 0
    assert result["probes"]["phase1"] == 88
    assert result["pairwise"] == 2016


def test_simulate_with_noise_accuses_no_innocent() -> None:
    result = simulate(n=32, k=4, strategy="faultsense", faults=1, kind="mixed", trials=20, noise=0.05, seed=3)
    assert result["false_suspects_per_trial"] == 0
    assert result["exact_rate"] >= 0.95


def test_drawn_faults_follow_the_seed() -> None:
    import numpy as np

    first = draw_faults(64, 4, "mixed", np.random.default_rng(5))
    assert first == draw_faults(64, 4, "mixed", np.random.default_rng(5))
    assert len(first) == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "nic"}, "kind"),
        ({"faults": 65}, "faults"),
        ({"trials": 0}, "trials"),
        ({"noise": -1}, "noise"),
        ({"slowdown": 0.5}, "slowdown"),
        ({"strategy": "guess"}, "strategy"),
        ({"k": 1}, "k"),
    ],
)
def test_simulate_names_what_is_out_of_range(change: dict, field: str) -> None:
    good = {
        "n": 64,
        "k": 8,
        "strategy": "faultsense",
        "faults": 1,
        "kind": "gpu",
        "trials": 1,
        "noise": 0,
        "seed": 1,
    }
    with pytest.raises(SettingsError) as caught:
        simulate(**{**good, **change})
    assert caught.value.field == field
