"""Sessions of strategy adaptive: healthy stays healthy, everything is in a probe, and a log replays."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.examiner import MAX_FOUND
from app.localization.components import Component, gpu, parse_component, path
from app.localization.events import Event, dump_log
from app.localization.probes import Probe
from app.localization.replay import replay_lines
from app.localization.session import resume
from app.localization.simulation import simulate
from tests.localization.adaptive.sessions import (
    CALIBRATED,
    TOLD,
    UNKNOWN,
    adaptive,
    answered,
    check_confirmed,
    cut_off,
    noise_free,
    reading,
)
from tests.localization.conftest import Run

seeds = st.integers(0, 2**31)
told = st.sampled_from(list(TOLD.values()))


def everything(n: int) -> set[object]:
    return {gpu(rank) for rank in range(n)} | {path(u, v) for u, v in combinations(range(n), 2)}


def touched(run: Run) -> set[object]:
    return {component for probe in run.probes for component in probe.components()}


def alone(n: int, hosts: tuple[int, ...] | None) -> set[Component]:
    """Paths that are the only one of their hop class: nothing can be compared with them."""
    by_class: dict[bool, list[Component]] = {}
    for u, v in combinations(range(n), 2):
        by_class.setdefault(hosts is None or hosts[u] == hosts[v], []).append(path(u, v))
    return {some[0] for some in by_class.values() if len(some) == 1}


placed = st.integers(2, 64).flatmap(
    lambda n: st.tuples(
        st.just(n), st.one_of(st.none(), st.lists(st.integers(0, 7), min_size=n, max_size=n).map(tuple))
    )
)


@given(placed=placed, told=told, seed=seeds)
@example(placed=(3, (0, 0, 1)), told=CALIBRATED, seed=0)
@example(placed=(4, (0, 0, 1, 2)), told=UNKNOWN, seed=0)
@settings(max_examples=12, deadline=None)
def test_a_healthy_replica_is_healthy_and_every_component_was_in_a_probe(
    placed: tuple[int, tuple[int, ...] | None], told: Assumptions, seed: int
) -> None:
    """With hosts or without, of one size or not."""
    n, hosts = placed
    run = noise_free(adaptive(n, told, seed=seed, hosts=hosts), [])
    untested = {parse_component(name) for name in run.verdict.untested}
    assert run.verdict.names == []
    assert run.verdict.outcome == ("inconclusive" if untested else "healthy")
    assert untested == alone(n, hosts)
    assert touched(run) == everything(n) - untested


@given(
    n=st.integers(2, 16),
    told=told,
    seed=seeds,
    latencies=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30),
    deadline=st.sampled_from([1e3, 1e9]),
)
@settings(max_examples=10, deadline=None)
def test_contradictory_readings_are_bounded_and_replay(
    n: int, told: object, seed: int, latencies: list[float], deadline: float
) -> None:
    """Whatever is answered: a verdict, in a bounded number of measurements, that the log gives again."""

    def answer(probe: Probe, number: int) -> Event:
        ms = latencies[(7 * number + probe.number) % len(latencies)]
        return reading(probe, ms) if ms < deadline else cut_off(probe, deadline)

    whole = adaptive(n, told, seed=seed)  # type: ignore[arg-type]
    run = answered(whole, answer)
    assert run.verdict.outcome in {"localized", "healthy", "inconclusive"}
    assert len(run.verdict.suspects) <= MAX_FOUND + 1
    assert all(suspect.slowdown > 1 for suspect in run.verdict.suspects if suspect.slowdown)
    check_confirmed(run)
    log = [Event("settings", whole.to_dict()), *run.events, Event("verdict", {"verdict": run.verdict.to_dict()})]
    result = replay_lines(list(dump_log(log)))
    assert result.identical, result.divergence


@given(cut=st.integers(0, 400), told=told)
@settings(max_examples=8, deadline=None)
def test_a_resumed_session_goes_on_as_it_would_have(cut: int, told: object) -> None:
    whole = adaptive(16, told)  # type: ignore[arg-type]
    run = noise_free(whole, [gpu(3), path(8, 9)])
    cut = min(cut, len(run.events) - 1)
    again = resume(whole, [*run.events[:cut], Event("resumed", {"attempt": 2})])
    for event in run.events[cut:]:
        again.observe(event)
    assert again.next() == run.verdict


@given(seed=seeds, u=st.integers(0, 31), v=st.integers(0, 31))
@settings(max_examples=10, deadline=None)
def test_one_fault_is_found_whatever_the_seed(seed: int, u: int, v: int) -> None:
    fault = gpu(u) if u == v else path(u, v)
    hosts = tuple(rank // 4 for rank in range(32))
    for where in (None, hosts):
        run = noise_free(adaptive(32, CALIBRATED, seed=seed, hosts=where), [fault])
        assert run.verdict.names == [str(fault)]
        check_confirmed(run)


@pytest.mark.parametrize(("faults", "kind"), [(0, "gpu"), (1, "mixed")])
def test_with_noise_it_is_exact_as_a_rule_and_accuses_nobody_wrongly(faults: int, kind: str) -> None:
    result = simulate(
        n=32, strategy="adaptive", model="physics", faults=faults, kind=kind, trials=40, noise=0.05, seed=11,
        gpu_slowdown=1.5, path_slowdown=3.0,
    )  # fmt: skip
    assert result["exact_rate"] >= 0.95
    assert result["false_accusation_rate"] == 0
