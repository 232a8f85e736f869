"""Random and given faults in both models: what is counted, what strategies are told, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.localization.adaptive.costs import Costs
from app.localization.adaptive.planner import Targets
from app.localization.components import Component
from app.localization.errors import SettingsError
from app.localization.expectation import Comparison
from app.localization.faults import parse_faults
from app.localization.intervals import rate_interval
from app.localization.physics import PhysicsReplica
from app.localization.placement import layout
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.shapes import Exchange, Shape, Shift
from app.localization.simulation import (
    Setup,
    _summarise,
    simulate,
    simulate_given,
    simulate_parts,
    useful_processes,
)
from app.localization.trials import Experiment, RandomFaults, RandomParts, Replica, Trial, World, run
from app.localization.verdict import Verdict

SMALL: dict[str, Any] = {"n": 16, "k": 4, "strategy": "faultsense", "trials": 12, "seed": 5}
STRONG: dict[str, Any] = {"gpu_slowdown": 8.0, "path_slowdown": 60.0}


def trial(wrong: int = 0, missed: int = 0, measurements: int = 10, seconds: float = 1.0) -> Trial:
    named = tuple(f"gpu:{i}" for i in range(wrong))
    lost = tuple(f"path:0-{i + 1}" for i in range(missed))
    compared = Comparison(("path:0-1",), lost, named, (), right_kind=True)
    return Trial(compared, "localized", named, (), 6, 3, measurements, 40, seconds)


def test_summary_by_hand() -> None:
    trials = [trial(), trial(wrong=2), trial(missed=1, measurements=30), trial(wrong=1, missed=2, seconds=5.0)]
    result = _summarise(trials, 16)
    assert (result["exact_rate"], result["exact_rate_interval"]) == (0.25, rate_interval(1, 4))
    assert (result["false_accusation_rate"], result["false_suspects_per_trial"]) == (0.5, 0.75)
    assert (result["miss_rate"], result["missed_per_trial"]) == (0.5, 0.75)
    assert result["false_accusation_rate_interval"] == result["miss_rate_interval"] == rate_interval(2, 4)
    assert (result["measurements_mean"], result["measurements_p95"]) == (15, pytest.approx(27))
    assert result["measurements_mean_interval"] == pytest.approx([15 - 3.18245 * 5, 15 + 3.18245 * 5], rel=1e-4)
    assert (result["path_units_mean"], result["seconds_mean"]) == (40, 2)
    assert result["probes"] == {"phase1": 6, "phase2": 3, "total_mean": 9, "total_p95": 9}
    assert result["pairwise"] == 120


@pytest.mark.parametrize("model", ["binary", pytest.param("physics", marks=pytest.mark.slow)])
def test_any_number_of_processes_gives_the_same_result(model: str) -> None:
    given = {**SMALL, **STRONG, "faults": 2, "kind": "mixed", "noise": 0.2, "model": model}
    told: list[int] = []
    alone = simulate(**given)
    assert alone == simulate(**given, processes=2, done=told.append)
    assert alone != simulate(**{**given, "seed": 6})
    assert told[-1] == 12


def test_a_trial_depends_on_its_number_and_the_seed_alone() -> None:
    setup = Setup(n=16, strategy="faultsense", noise=0.3, model="physics", noise_family="unknown")
    drawn = RandomFaults(2, "mixed", gpu_slowdown=8, path_slowdown=60)
    first, again = (Experiment(setup.settings(), setup.world(), drawn, seed=3) for _ in range(2))
    later = [first.trial(number) for number in (4, 2, 0)]
    assert [again.trial(number) for number in (0, 2, 4)] == later[::-1]
    assert len({each.seconds for each in later}) == 3


def test_a_strategy_that_randomises_does_so_anew_in_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def noted(settings: Settings, replica: Replica) -> tuple[Session, Verdict]:
        seeds.append(settings.seed)
        return run(settings, replica)

    monkeypatch.setattr("app.localization.trials.run", noted)
    for seed in (5, 5, 6):
        simulate(**{**SMALL, "faults": 0, "kind": "gpu", "trials": 3, "seed": seed})
    assert seeds[:3] == seeds[3:6]
    assert len(set(seeds)) == 6


@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize("strategy", ["faultsense", "pairwise"])
def test_physics_show_strong_faults_to_the_papers_strategies(strategy: str, transport: str) -> None:
    result = simulate(
        n=16,
        strategy=strategy,
        trials=6,
        model="physics",
        transport=transport,
        faults=1,
        kind="mixed",
        gpu_slowdown=6,
        path_slowdown=40,
    )
    assert (result["exact_rate"], result["false_accusation_rate"], result["miss_rate"]) == (1, 0, 0)
    assert result["measurements_mean"] == result["probes"]["total_mean"]
    assert 0.020 < result["seconds_mean"] / result["measurements_mean"] < 0.5


def test_in_physics_a_weak_path_is_diluted_and_missed_where_the_binary_model_shows_it_whole() -> None:
    given = {**SMALL, "faults": 1, "kind": "path", "slowdown": None, "path_slowdown": 3.0}
    assert simulate(**given)["exact_rate"] == 1
    missed = simulate(**given, model="physics")
    assert (missed["exact_rate"], missed["miss_rate"], missed["false_accusation_rate"]) == (0, 1, 0)


def test_defaults_of_the_slowdowns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Setup, "run", lambda self, experiment: seen.append(experiment.faults) or [trial()])
    for given in (
        {},
        {"slowdown": 4.0},
        {"slowdown": 4.0, "path_slowdown": 7.0},
        {"model": "physics"},
        {"model": "physics", "gpu_slowdown": 2.0},
    ):
        simulate(**{**SMALL, "faults": 3, "kind": "gpu", **given})
    assert [(each.gpu_slowdown, each.path_slowdown) for each in seen] == [(2, 2), (4, 4), (4, 7), (1.5, 3), (2, 3)]
    assert (seen[0].count, seen[0].kind) == (3, "gpu")


def test_drawn_faults_have_the_slowdown_of_their_kind() -> None:
    drawn = RandomFaults(8, "mixed", gpu_slowdown=1.5, path_slowdown=3).draw(16, np.random.default_rng(2))
    factors = {fault.component.kind: fault.factor for fault in drawn}
    assert (len(drawn), factors) == (8, {"gpu": 1.5, "path": 3})


def test_adaptive_is_told_costs_and_targets() -> None:
    physics = Setup(n=300, strategy="adaptive", model="physics", transport="shared", noise=0.05)
    told = physics.settings(gpu_slowdown=2.0, path_slowdown=10.0).adaptive
    assert told is not None
    assert (told.costs, told.targets) == (Costs(sigma=0.05), Targets(gpu=2.0, path=10.0))
    assert (told.transport, told.trusted) == ("shared", False)
    binary = Setup(n=300, strategy="adaptive", noise=0.1).settings(gpu_slowdown=1.0, path_slowdown=2.5).adaptive
    assert binary is not None
    assert binary.costs == Costs(fixed_ms=20.0, compute_ms=0, path_ms=0, sigma=0.1)
    assert binary.targets == Targets(path=2.5), "a factor of 1 is nothing to look for"
    assert (binary.transport, binary.trusted) == ("undiluted", True)
    assert Setup(n=300, strategy="adaptive").settings().adaptive.targets == Targets()  # type: ignore[union-attr]
    assert Setup(n=300, strategy="faultsense").settings(gpu_slowdown=2.0).adaptive is None
    assert Setup(n=2, strategy="adaptive").settings().gpus == 2


def step_ms(world: World, seed: int, shape: Shape) -> float:
    replica = world.replica(4, (), (0, 0), np.random.default_rng(seed))
    assert isinstance(replica, PhysicsReplica)
    return replica.step_ms(shape)


def test_what_is_unknown_of_a_trial() -> None:
    """Its a and b differ from what the engine is told, each on its own by up to 30 %, anew in every trial."""
    own, unknown = World("physics"), World("physics", noise_family="unknown")
    loops, shift = Exchange((0, 1, 2, 3), (), 512), Shift(((0, 1, 2, 3),), (1,), 512)
    assert {step_ms(own, seed, loops) for seed in range(3)} == {20 + 5}
    a = np.array([(step_ms(unknown, seed, loops) - 20) / 5 for seed in range(200)])
    b = np.array([step_ms(unknown, seed, shift) - step_ms(unknown, seed, loops) for seed in range(200)]) / (
        5 * 512 / 448
    )
    for factor in (a, b):
        assert 0.7 <= factor.min() < 0.75
        assert 1.25 < factor.max() <= 1.3
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.2


def test_a_rank_carries_the_same_load_whatever_the_probe_size() -> None:
    """Work as long as the fixed part: 20 ms at (5/512 + 5/448) ms a token."""
    tokens = 20 / (5 / 512 + 5 / 448)
    for strategy, k, size in (("faultsense", 8, 8), ("faultsense", 4, 4), ("pairwise", None, 2)):
        world = Setup(n=64, strategy=strategy, k=k, model="physics").world()
        assert world.sequence_tokens == round(tokens / size)
    assert Setup(n=64, strategy="faultsense").world().sequence_tokens == 1
    assert Setup(n=64, strategy="adaptive", model="physics").world().sequence_tokens == 1


def test_path_units_count_tokens_of_one_step_a_measurement() -> None:
    healthy = simulate(**{**SMALL, "faults": 0, "kind": "gpu"})
    assert healthy["measurements_mean"] == healthy["probes"]["total_mean"] == 20
    assert healthy["path_units_mean"] == healthy["measurements_mean"] * 4 * 3
    physics = simulate(**{**SMALL, "faults": 0, "kind": "gpu", "model": "physics"})
    assert physics["path_units_mean"] == healthy["path_units_mean"] * 239
    noisy = simulate(**{**SMALL, "faults": 0, "kind": "gpu", "noise": 0.001, "seed": 7, "trials": 1})
    assert noisy["measurements_mean"] >= 2 * noisy["probes"]["total_mean"], "every probe up to three times"


def given(*texts: str, **more: Any) -> dict[str, Any]:
    return simulate_given(parse_faults(texts, 16), **{**SMALL, "trials": 2, "model": "physics", **more})


def test_given_faults_in_physics() -> None:
    result = given("gpu:5*8", "path:1-2+60ms", "path:9>3*80")
    assert (result["exact_rate"], result["named"]) == (1, {"gpu:5": 2, "path:1-2": 2, "path:3-9": 2})
    assert result["miss_rate_interval"] == rate_interval(0, 2)
    assert given("all*2")["outcomes"] == {"healthy": 2}
    for strategy in ("faultsense", "pairwise"):
        k = None if strategy == "pairwise" else 4
        assert given("all*2", strategy=strategy, k=k, history=True)["outcomes"] == {"uniform_slowdown": 2}
        assert given(strategy=strategy, k=k, history=True)["outcomes"] == {"healthy": 2}


def test_a_path_named_for_a_shared_part_is_a_symptom_not_a_false_accusation() -> None:
    placement = layout(16, 4)
    faults = parse_faults(["fabric:host-a*3"], 16, placement)
    result = simulate_given(faults, **{**SMALL, "trials": 1}, placement=placement)
    assert (result["symptoms_per_trial"], result["false_accusation_rate"], result["miss_rate"]) == (6, 0, 1)
    assert result["measurements_mean_interval"] is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "chemistry"}, "model"),
        ({"transport": "undiluted"}, "transport"),
        ({"transport": "undiluted", "model": "physics"}, "transport"),
        ({"noise_family": "pink"}, "noise_family"),
        ({"noise_family": "unknown"}, "noise_family"),
        ({"gpu_slowdown": 0.5}, "gpu_slowdown"),
        ({"path_slowdown": float("nan")}, "path_slowdown"),
        ({"slowdown": 1001}, "slowdown"),
        ({"trials": 100_001}, "trials"),
        ({"n": 1, "k": None}, "gpus"),
        ({"processes": 2, "strategy": "guess"}, "strategy"),
    ],
)
def test_what_is_out_of_range_is_named(change: dict[str, Any], field: str) -> None:
    good = {**SMALL, "faults": 1, "kind": "gpu"}
    with pytest.raises(SettingsError) as caught:
        simulate(**{**good, **change})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("texts", "more", "field"),
    [
        (["gpu:5!hang"], {}, "fault"),
        (["gpu:5*2@0.5"], {}, "fault"),
        (["rail:0*2"], {}, "fault"),
        (["gpu:5*2"], {"strategy": "adaptive", "k": None, "history": True}, "history"),
    ],
)
def test_given_faults_that_physics_do_not_know(texts: list[str], more: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        given(*texts, **more)
    assert caught.value.field == field


def test_processes_are_used_where_they_pay() -> None:
    assert useful_processes(16, 20) == useful_processes(300, 1) == 1
    assert useful_processes(300, 3000) == useful_processes(8, 100_000) >= 1


def test_random_parts_are_where_paths_cross_them_and_concern_no_gpu_twice() -> None:
    placement = layout(16, 4)
    drawn = RandomParts(("gpu", "nic", "host", "fabric", "rail", "leaf"), 2, placement, 2.0, 4.0)
    kinds = set()
    for seed in range(60):
        faults = drawn.draw(16, np.random.default_rng(seed))
        assert len(faults) == 2
        ranks = []
        for fault in faults:
            part = fault.component
            kinds.add(part.kind)
            assert fault.factor == (2.0 if part.kind == "gpu" else 4.0)
            ranks += part.members if isinstance(part, Component) else placement.ranks_at(part)
        assert len(ranks) == len(set(ranks))
    assert kinds == {"gpu", "nic", "host", "fabric", "rail", "leaf"}


@pytest.mark.parametrize(
    ("kinds", "words"), [(("leaf",), "no leaf in this topology"), (("host", "rail"), "overlap")]
)
def test_random_parts_that_cannot_be_are_refused(kinds: tuple[str, ...], words: str) -> None:
    placement = layout(8, 2, leaves=1)
    with pytest.raises(SettingsError, match=words):
        RandomParts(kinds, len(kinds), placement, 2.0, 4.0).draw(8, np.random.default_rng(1))


def test_slow_parts_are_found_by_a_job_that_measures_its_costs() -> None:
    placement = layout(32, 8)
    setup = {"n": 32, "strategy": "adaptive", "model": "physics", "noise": 0.05, "costs_given": False, "trials": 4}
    found = simulate_parts(("host", "fabric"), placement=placement, part_slowdown=6.0, **setup)
    assert (found["exact_rate"], found["false_accusation_rate"]) == (1, 0)
    assert set(found["reasons"]) <= {"uplink", "fabric"}


def test_only_strategy_adaptive_measures_costs() -> None:
    with pytest.raises(SettingsError, match="only strategy adaptive measures costs"):
        simulate(faults=0, kind="gpu", n=8, strategy="faultsense", model="physics", costs_given=False)
