"""Bad worlds: much is slow, nothing answers, time runs out. A defined verdict, and nobody accused unconfirmed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs
from app.localization.adaptive.examiner import MAX_FOUND
from app.localization.adaptive.planner import Targets
from app.localization.components import Component, gpu, path
from app.localization.events import Event, failed
from app.localization.physics import OwnNoise, PhysicsReplica
from app.localization.probes import Probe
from app.localization.session import Session
from app.localization.strategies.adaptive import FEWEST_GROUPS
from app.localization.verdict import Verdict
from tests.localization.adaptive.sessions import (
    CALIBRATED,
    COSTS,
    GPU_SLOWDOWN,
    TOLD,
    UNKNOWN,
    adaptive,
    answered,
    check_confirmed,
    cut_off,
    noise_free,
    reading,
    slowdowns,
)

either = pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)


def right(names: list[str], *faults: Component) -> bool:
    return set(names) <= set(map(str, faults))


@either
@pytest.mark.parametrize("n", [4, 8, 16])
def test_half_of_the_gpus_slow(n: int, told: Assumptions) -> None:
    slow = [gpu(rank) for rank in range(n // 2)]
    run = noise_free(adaptive(n, told), slow)
    assert right(run.verdict.names, *slow)
    assert run.verdict.outcome != "healthy"
    check_confirmed(run)


@either
def test_a_few_that_are_faster_than_most_leave_it_open(told: Assumptions) -> None:
    """In some jobs both GPUs that are tested alone are slow, too: these see nothing."""
    slow = [gpu(rank) for rank in range(32)]
    runs = [noise_free(adaptive(64, told, seed=seed), slow) for seed in range(6)]
    outcomes = [run.verdict.outcome for run in runs]
    assert outcomes.count("healthy") <= 2, outcomes
    assert all(right(run.verdict.names, *slow) for run in runs)
    reasons = {reason["code"] for run in runs for reason in run.verdict.reasons}
    assert reasons & {"few_fast", "too_many_faults", "out_of_measurements"}


@either
@pytest.mark.parametrize("n", [3, 8, 64])
def test_all_gpus_slow_is_seen_against_history_only(n: int, told: Assumptions) -> None:
    everything = [gpu(rank) for rank in range(n)]
    run = noise_free(adaptive(n, told), everything)
    assert (run.verdict.names, run.verdict.outcome) == ([], "healthy")
    run = noise_free(adaptive(n, told, history_ms=run.verdict.baseline_ms / 1.5), everything)  # type: ignore[operator]
    assert (run.verdict.names, run.verdict.outcome) == ([], "uniform_slowdown")


@pytest.mark.parametrize("hosts", [(0,) * 5 + (1,) * 2 + (2,), (0, 1, 1, 1, 1, 1, 1, 1), (3, 3, 3, 7, 7, 7, 9, 9)])
@pytest.mark.parametrize("fault", [gpu(0), gpu(7), path(0, 1), path(5, 7), path(0, 7)])
def test_unequal_hosts(hosts: tuple[int, ...], fault: Component) -> None:
    run = noise_free(adaptive(8, CALIBRATED, hosts=hosts), [fault])
    assert run.verdict.names == [str(fault)]
    check_confirmed(run)


@either
@pytest.mark.parametrize("n", [3, 8, 16])
def test_a_rank_that_never_answers_while_others_do(n: int, told: Assumptions) -> None:
    """Every probe of it is cut off: at least so slow."""
    healthy = PhysicsReplica(n, [], COSTS, "serial")

    def answer(probe: Probe, number: int) -> Event:
        return cut_off(probe, 5000) if 1 in probe.members else healthy.answer(probe, number)

    run = answered(adaptive(n, told), answer)
    assert run.verdict.names == ["gpu:1"]
    assert run.verdict.suspects[0].slowdown_is_lower_bound
    check_confirmed(run)


def interrupted(told: Assumptions, after: int, event: Event | None, n: int = 12) -> Verdict:
    """The verdict when something else than an answer comes after some measurements; None: the engine hangs."""
    replica = PhysicsReplica(n, slowdowns([gpu(2), path(5, 7)]), COSTS, "serial")
    session = Session(adaptive(n, told))
    for number in range(after):
        upcoming = session.next()
        if isinstance(upcoming, Verdict):
            return upcoming
        session.observe(replica.answer(upcoming, number))
    upcoming = session.next()
    if isinstance(upcoming, Probe):
        session.observe(event or cut_off(upcoming, 5000, alive=False))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    return verdict


@either
@pytest.mark.parametrize(
    "event", ["deadline", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cancelled", "hung"))]
)
def test_cut_short_at_any_step_it_says_what_is_untested(told: Assumptions, event: str) -> None:
    end = None if event == "hung" else Event(event)  # type: ignore[arg-type]
    code = "engine_hung" if event == "hung" else event
    complete = interrupted(told, 10_000, None)
    assert complete.names == ["gpu:2", "path:5-7"]
    for after in range(int(complete.cost["measurements"])):
        verdict = interrupted(told, after, end)
        assert right(verdict.names, gpu(2), path(5, 7))
        assert verdict.outcome == ("localized" if verdict.names else "inconclusive")
        assert verdict.reasons[-1]["code"] == code
        assert verdict.untested or verdict.names == complete.names, f"after {after}"
        assert verdict.cost["measurements"] == after


def test_a_refused_rank_is_accused_at_once() -> None:
    def answer(probe: Probe, number: int) -> Event:
        return failed(probe, code="rank_refused", detail="connection refused", rank=3)

    run = answered(adaptive(8), answer)
    assert (run.verdict.outcome, run.verdict.names) == ("localized", ["gpu:3"])
    assert run.verdict.suspects[0].slowdown is None


@either
def test_where_paths_are_not_selectable_none_is_named_and_gpus_are(told: Assumptions) -> None:
    blind = adaptive(8, told, paths_selectable=False)
    run = noise_free(blind, [gpu(1), path(2, 3)])
    assert run.verdict.names == ["gpu:1"]
    assert {probe.path_units for probe in run.probes} == {0}
    assert (run.verdict.detectable["path"], run.verdict.masked) == (None, [])
    run = noise_free(blind, [path(2, 3)])
    assert (run.verdict.names, run.verdict.outcome) == ([], "inconclusive")
    assert run.codes - {"whole_steps"} == {"paths_not_selectable"}


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_targets_below_the_noise_floor_accuse_nobody_of_noise(sigma: float) -> None:
    told = Assumptions(costs=Costs(sigma=sigma), targets=Targets(gpu=1.001, path=1.01))
    for seed in range(4):
        replica = PhysicsReplica(8, [], COSTS, "serial", OwnNoise(sigma, np.random.default_rng(seed)))
        run = answered(adaptive(8, told, seed=seed), replica.answer)
        assert run.verdict.names == []
        detectable = run.verdict.detectable
        assert detectable["gpu"] is None or detectable["gpu"] > 1.001


@either
@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_a_server_that_takes_one_sequence_a_rank(n: int, told: Assumptions) -> None:
    """Nothing heavier is sent, and what cannot be seen at that load is not claimed."""
    run = noise_free(adaptive(n, replace(told, max_tokens=1)), [gpu(0)])
    assert max(probe.shape.load for probe in run.probes) == 1
    assert right(run.verdict.names, gpu(0))
    limit = run.verdict.detectable["gpu"]
    # Of so few GPUs what is told is of whole steps, where the costs are not known.
    step = max(event.data["tbt_ms"] for event in run.events) / COSTS.fixed_ms
    shown = step if told.costs is None and n // 2 <= FEWEST_GROUPS else GPU_SLOWDOWN
    assert run.verdict.names or limit is None or limit > shown


@pytest.mark.parametrize("most", [1, 2, 7, 64, 1024])
@either
def test_no_probe_is_heavier_than_the_server_takes(told: Assumptions, most: int) -> None:
    run = noise_free(adaptive(10, replace(told, max_tokens=most)), [gpu(0), path(3, 4)])
    assert max(probe.shape.load for probe in run.probes) <= most


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_readings_without_any_sense(n: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        told = (CALIBRATED, UNKNOWN)[seed % 2]
        run = answered(
            adaptive(n, told, seed=seed), lambda probe, _, rng=rng: reading(probe, 10 ** rng.uniform(-2, 6))
        )
        assert run.verdict.outcome in {"localized", "healthy", "inconclusive"}
        check_confirmed(run)


@either
def test_more_slow_paths_than_faults_explain(told: Assumptions) -> None:
    """None is named wrongly, and the verdict says that it is rather something else."""
    slow = [path(2 * pair, 2 * pair + 1) for pair in range(12)]
    run = noise_free(adaptive(24, told), slow)
    assert right(run.verdict.names, *slow)
    assert run.verdict.outcome != "healthy"
    if told is CALIBRATED:
        assert len(run.verdict.names) == MAX_FOUND + 1
        assert run.codes == {"too_many_faults"}
    check_confirmed(run)


def test_history_accuses_the_whole_replica_only_of_more_than_noise_explains() -> None:
    def outcome(history_ms: float | None) -> Verdict:
        replica = PhysicsReplica(4, [], Costs(), "serial", OwnNoise(0.34, np.random.default_rng(3)))
        told = Assumptions(max_tokens=4)
        return answered(adaptive(4, told, seed=3, history_ms=history_ms), replica.answer).verdict

    level = outcome(None).baseline_ms
    assert level is not None
    assert [outcome(level / factor).outcome for factor in (1.4, 4)] == ["healthy", "uniform_slowdown"]


@either
def test_where_every_probe_holds_a_slow_path_only_history_tells(told: Assumptions) -> None:
    slow = [path(u, v) for u in range(4) for v in range(4, 8)]
    before = noise_free(adaptive(8, told), [])
    run = noise_free(adaptive(8, told, history_ms=before.verdict.baseline_ms), slow)
    assert (run.verdict.names, run.verdict.outcome) == ([], "uniform_slowdown")


def test_a_path_alone_in_its_host_is_held_against_those_of_other_hosts() -> None:
    hosts = tuple(rank // 2 for rank in range(16))
    for fault in (path(4, 5), path(4, 6)):
        run = noise_free(adaptive(16, hosts=hosts), [fault])
        assert run.verdict.names == [str(fault)]
        check_confirmed(run)


def test_a_path_with_nothing_beside_it_is_never_accused() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        run = answered(adaptive(2, seed=seed), lambda probe, _, rng=rng: reading(probe, 10 ** rng.uniform(0, 2)))
        assert "path:0-1" not in run.verdict.names
        assert "path:0-1" in run.verdict.untested or run.verdict.names, "or masked by a slow GPU"
        assert all(suspect.slowdown > 1 for suspect in run.verdict.suspects if suspect.slowdown)


@either
@pytest.mark.parametrize("most", [0, 1, 5, 30])
def test_the_bound_on_measurements_ends_a_job(
    told: Assumptions, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.localization.strategies.adaptive.LIMIT_SWEEPS", 0)
    monkeypatch.setattr("app.localization.strategies.adaptive.LIMIT_MORE", most)
    run = noise_free(adaptive(16, told), [gpu(1), path(2, 3)])
    assert len(run.events) == most
    assert run.codes == {"out_of_measurements"}
    assert run.verdict.untested
    assert right(run.verdict.names, gpu(1), path(2, 3))
