"""Strategy adaptive with probes of exactly k GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs
from app.localization.adaptive.planner import Targets
from app.localization.components import Component, gpu, path
from app.localization.cover import best_cover
from app.localization.errors import SettingsError
from app.localization.events import Event, dump_log, failed
from app.localization.probes import Probe
from app.localization.replay import replay_lines
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.shapes import Clique
from app.localization.simulation import simulate
from app.localization.strategies import make_strategy
from app.localization.strategies.adaptive import Adaptive
from app.localization.strategies.fixed_size import FixedSize
from app.localization.verdict import Verdict
from tests.localization.conftest import Latency, Run, binary, drive


def told(sigma: float = 0.0, **more: Any) -> Assumptions:
    costs = Costs(fixed_ms=20.0, compute_ms=0.0, path_ms=0.0, sigma=sigma)
    return Assumptions(
        **{
            "costs": costs,
            "targets": Targets(gpu=1.5, path=1.5),
            "transport": "undiluted",
            "fixed_size": True,
            **more,
        }
    )


def fixed(n: int, k: int, *, sigma: float = 0.0, **more: Any) -> Settings:
    return Settings(**{"gpus": n, "k": k, "strategy": "adaptive", "adaptive": told(sigma), **more})


def localize(n: int, k: int, *faults: str | Component, slowdown: float = 1.5, **more: Any) -> Run:
    return drive(fixed(n, k, **more), binary(*map(str, faults), slowdown=slowdown))


def noisy(latency: Latency, sigma: float = 0.05, seed: int = 0) -> Latency:
    rng = np.random.default_rng(seed)
    return lambda probe: latency(probe) * float(np.exp(sigma * rng.standard_normal()))


def components(n: int) -> list[Component]:
    return [gpu(rank) for rank in range(n)] + [path(u, v) for u, v in combinations(range(n), 2)]


def unmasked(faults: tuple[Component, ...]) -> bool:
    slow = {c.members[0] for c in faults if c.kind == "gpu"}
    return all(c.kind == "gpu" or slow.isdisjoint(c.members) for c in faults)


# --- exact without noise


@pytest.mark.parametrize(("n", "k"), [(4, 2), (7, 3), (8, 4), (12, 5), (16, 8), (25, 8), (64, 8)])
def test_healthy_takes_the_cover_once_and_accuses_nothing(n: int, k: int) -> None:
    run = localize(n, k)
    assert (run.verdict.outcome, run.verdict.untested, run.codes) == ("healthy", [], set())
    assert {probe.members for probe in run.probes} >= set(best_cover(n, k).probes)
    assert len(run.events) == len(run.probes) == run.session.strategy.plan().probes


def test_every_single_fault_of_the_papers_example() -> None:
    for fault in components(8):
        assert localize(8, 4, fault).verdict.names == [str(fault)]


@pytest.mark.parametrize(
    ("n", "k", "sets"),
    [
        (4, 2, 33),
        (6, 3, 40),
        (8, 2, 20),
        (8, 4, 60),
        (10, 4, 30),
        (16, 8, 25),
        pytest.param(64, 8, 10, marks=pytest.mark.slow),
    ],
)
def test_sets_of_two_faults(n: int, k: int, sets: int) -> None:
    """Any two faults that do not mask each other; all of them at n = 4."""
    rng = np.random.default_rng(n * 100 + k)
    possible = [pair for pair in combinations(components(n), 2) if unmasked(pair)]
    for place in rng.permutation(len(possible))[:sets]:
        run = localize(n, k, *possible[place], seed=int(place))
        assert run.verdict.names == sorted(map(str, possible[place]), key=lambda name: name.startswith("path")), (
            possible[place]
        )


def test_every_probe_is_a_clique_of_k() -> None:
    run = localize(25, 8, "gpu:3", "path:8-19")
    assert run.verdict.names == ["gpu:3", "path:8-19"]
    assert {len(probe.members) for probe in run.probes} == {8}
    assert all(isinstance(probe.shape, Clique) for probe in run.probes)


def test_two_unrelated_faults_that_share_an_innocent() -> None:
    assert localize(16, 4, "path:0-1", "path:0-9").verdict.names == ["path:0-1", "path:0-9"]
    assert localize(16, 4, "gpu:3", "path:7-11").verdict.names == ["gpu:3", "path:7-11"]


def test_a_path_that_a_slow_gpu_masked_in_the_cover_is_found() -> None:
    """Both sit in one probe of the cover, and no other holds the path."""
    slow, u, v = best_cover(64, 8).probes[20][:3]
    assert localize(64, 8, f"gpu:{slow}", f"path:{u}-{v}").verdict.names == [f"gpu:{slow}", f"path:{u}-{v}"]


@pytest.mark.parametrize(("n", "k"), [(8, 4), (16, 8)])
def test_a_slow_gpu_is_told_from_a_star_of_slow_paths(n: int, k: int) -> None:
    for a, b in ((1, 2), (2, n - 1), (3, 5)):
        assert localize(n, k, f"path:0-{a}", f"path:0-{b}").verdict.names == [f"path:0-{a}", f"path:0-{b}"]
    assert localize(n, k, "gpu:0").verdict.names == ["gpu:0"]


def test_two_slow_gpus_that_sit_in_every_probe_of_the_best_cover() -> None:
    assert all({2, 3} & set(members) for members in best_cover(6, 3).probes)
    assert localize(6, 3, "gpu:2", "gpu:3").verdict.names == ["gpu:2", "gpu:3"]


def test_only_gpus_where_paths_cannot_be_told_apart() -> None:
    run = localize(16, 4, "gpu:5", paths_selectable=False)
    assert (run.verdict.names, run.verdict.untested) == (["gpu:5"], ["path:*-*"])
    assert "paths_not_selectable" in run.codes


def test_what_it_says_of_a_suspect() -> None:
    run = localize(16, 4, "gpu:6", slowdown=3.0)
    (suspect,) = run.verdict.suspects
    assert suspect.slowdown == pytest.approx(3.0)
    assert (suspect.alternatives, run.verdict.masked) == ([], ["path:6-*"])
    holding = {probe.number for probe in run.probes if 6 in probe.members}
    assert set(suspect.accusing) == holding
    assert not suspect.acquitting
    assert suspect.confidence > 0.99


# --- noise, bursts, contradictions


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (0, "gpu"),
        (1, "gpu"),
        pytest.param(1, "path", marks=pytest.mark.slow),
        pytest.param(2, "mixed", marks=pytest.mark.slow),
    ],
)
def test_the_binary_model_with_noise(faults: int, kind: Any) -> None:
    """A tenth of what the issue asks of n = 64, k = 8: the whole takes minutes."""
    result = simulate(
        n=64, k=8, strategy="adaptive", slowdown=1.5, noise=0.05, faults=faults, kind=kind, trials=12, seed=4
    )
    assert (result["exact_rate"], result["false_accusation_rate"]) == (1, 0)
    assert result["measurements_mean"] <= 115


def test_a_burst_in_the_sweep_is_read_again_and_accuses_nothing() -> None:
    def latency(probe: Probe) -> float:
        return 60.0 if probe.number in (3, 9) and probe.repeat == 0 else 20.0

    run = drive(fixed(64, 8, sigma=0.05), noisy(latency))
    assert (run.verdict.outcome, run.codes) == ("healthy", set())
    assert [probe.repeat for probe in run.probes].count(0) == 72
    repeated = {number for number, taken in run.session.strategy.record.readings.items() if len(taken) > 1}
    assert repeated == {3, 9}


def test_what_is_slow_in_the_sweep_only_is_not_accused() -> None:
    """A GPU that recovers: the sweep speaks against it, clean references next to it do not."""
    taken: list[Probe] = []

    def latency(probe: Probe) -> float:
        taken.append(probe)
        return 30.0 if 5 in probe.members and len(taken) <= 72 else 20.0

    run = drive(fixed(64, 8, sigma=0.05), noisy(latency))
    assert (run.verdict.outcome, run.verdict.suspects) == ("inconclusive", [])
    assert run.codes == {"unstable"}


def test_a_level_that_drifts_accuses_nothing() -> None:
    level = [20.0]

    def latency(probe: Probe) -> float:
        level[0] *= 1.005  # to 1.4 times over the sweep
        return level[0]

    assert drive(fixed(64, 8, sigma=0.05), noisy(latency)).verdict.outcome == "healthy"


@pytest.mark.parametrize("seed", range(3))
def test_readings_at_random_end_bounded_and_accuse_nothing_by_one_probe(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = drive(fixed(16, 4, sigma=0.05), lambda _: float(rng.choice([20.0, 40.0])))
    assert len(run.events) <= 6 * run.session.strategy.plan().probes + 200
    assert all(len(suspect.accusing) > 1 for suspect in run.verdict.suspects)


def test_more_slow_components_than_faults_explain() -> None:
    faults = [f"path:{u}-{u + 1}" for u in range(0, 40, 4)]
    run = localize(64, 8, *faults)
    assert "too_many_faults" in run.codes
    assert set(run.verdict.names) < set(faults)


def test_noise_that_is_not_told_is_learnt() -> None:
    settings = fixed(64, 8, adaptive=told(costs=None))
    for seed in range(3):
        run = drive(settings, noisy(binary(slowdown=1.0), sigma=0.1, seed=seed))
        assert run.verdict.suspects == []
    assert drive(settings, noisy(binary("gpu:7", slowdown=3.0), sigma=0.1)).verdict.names == ["gpu:7"]


def test_hosts_have_levels_of_their_own() -> None:
    """Probes inside a host take a third of the time; a path that is slow there still takes less than others."""
    hosts = tuple(rank // 8 for rank in range(64))

    def latency(probe: Probe) -> float:
        inside = len({hosts[rank] for rank in probe.members}) == 1
        return (10.0 if inside else 30.0) * (1.8 if {1, 2}.issubset(probe.members) else 1.0)

    run = drive(fixed(64, 8, sigma=0.05, hosts=hosts), noisy(latency))
    assert run.verdict.names == ["path:1-2"]
    assert run.codes == set()


def test_probes_cut_off_at_their_deadline_give_a_lower_bound() -> None:
    run = drive(fixed(16, 4, decode_tokens=10), binary("gpu:6", slowdown=500.0), deadline_ms=1000.0)
    (suspect,) = run.verdict.suspects
    assert (suspect.name, suspect.slowdown_is_lower_bound) == ("gpu:6", True)
    assert suspect.slowdown == pytest.approx(1000 / 10 / 20)


# --- what cannot be told


@pytest.mark.parametrize("n", [2, 8])
def test_n_of_k_has_nothing_to_compare(n: int) -> None:
    run = localize(n, n, "gpu:1")
    assert (run.verdict.outcome, run.codes) == ("inconclusive", {"nothing_to_compare"})
    assert run.verdict.untested == ["gpu:*", "path:*-*"]


def test_n_of_k_plus_one_names_one_fault_and_says_that_two_could_hide() -> None:
    for fault in components(5):
        run = localize(5, 4, fault)
        assert (run.verdict.names, run.codes) == ([str(fault)], {"two_faults_could_hide"})


def test_equals_are_named_beside_a_suspect_or_left_open() -> None:
    """n = 5, k = 3: with two slow GPUs no probe is left that could separate a third GPU's paths."""
    for pair in combinations([f"gpu:{rank}" for rank in range(5)], 2):
        run = localize(5, 3, *pair)
        sure = {suspect.name for suspect in run.verdict.suspects if not suspect.alternatives}
        assert sure <= set(pair)
        assert sure == set(pair) or "cannot_be_separated" in run.codes or run.verdict.suspects


def test_uniform_slowdown_against_history() -> None:
    settings = fixed(16, 4, history_ms=20.0)
    assert drive(settings, binary(healthy_ms=60.0)).verdict.outcome == "uniform_slowdown"
    assert drive(settings, binary(healthy_ms=21.0)).verdict.outcome == "healthy"


# --- sessions


@pytest.mark.parametrize("faults", [(), ("gpu:3", "path:8-9"), ("path:1-2", "path:1-7")])
def test_a_log_replays_to_the_same_probes_and_verdict(faults: tuple[str, ...]) -> None:
    settings = fixed(16, 4, sigma=0.05, seed=9)
    run = drive(settings, noisy(binary(*faults, slowdown=1.5)))
    stored = list(
        dump_log(
            [
                Event("settings", settings.to_dict()),
                *run.events,
                Event("verdict", {"verdict": run.verdict.to_dict()}),
            ]
        )
    )
    result = replay_lines(stored)
    assert result.identical, result.divergence
    assert result.verdict == run.verdict.to_dict()


def test_another_seed_takes_another_order_to_the_same_names() -> None:
    runs = [localize(16, 4, "gpu:3", "path:8-9", seed=seed) for seed in (1, 2)]
    assert runs[0].verdict.names == runs[1].verdict.names == ["gpu:3", "path:8-9"]
    assert [p.members for p in runs[0].probes] != [p.members for p in runs[1].probes]


def test_the_first_probes_touch_every_gpu() -> None:
    run = localize(64, 8)
    assert {rank for probe in run.probes[:8] for rank in probe.members} == set(range(64))


def stopped(after: int, stop: Callable[[Session], Event]) -> Verdict:
    session, latency = Session(fixed(16, 4)), binary("gpu:3")
    for _ in range(after):
        probe = session.next()
        assert isinstance(probe, Probe)
        ms = latency(probe)
        session.observe(Event("measured", {**describe(probe), "tbt_ms": ms, "ttft_ms": ms, "wall_ms": ms}))
    session.observe(stop(session))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    return verdict


def describe(probe: Probe) -> dict[str, Any]:
    from app.localization.events import describe as described

    return described(probe)


def test_cut_short_it_keeps_what_it_found_and_names_what_is_open() -> None:
    at_once = stopped(0, lambda _: Event("deadline"))
    assert (at_once.outcome, at_once.untested) == ("inconclusive", ["gpu:*", "path:*-*"])
    whole = localize(16, 4, "gpu:3")
    after = len([p for p in whole.probes if p.phase == 1]) + 5
    cut = stopped(after, lambda _: Event("deadline"))
    assert cut.names == ["gpu:3"]
    assert cut.untested, "paths that it masked were not measured yet"


def test_a_rank_that_refuses_is_localized() -> None:
    def refused(session: Session) -> Event:
        probe = session.next()
        assert isinstance(probe, Probe)
        return failed(probe, code="rank_refused", detail="refused", rank=6)

    verdict = stopped(3, refused)
    assert (verdict.outcome, verdict.names) == ("localized", ["gpu:6"])


# --- wiring


def test_when_it_is_chosen() -> None:
    assert isinstance(make_strategy(fixed(16, 4)), FixedSize)
    assert isinstance(make_strategy(Settings(gpus=16, k=4, strategy="adaptive", any_size=False)), FixedSize)
    assert isinstance(make_strategy(Settings(gpus=16, k=4, strategy="adaptive")), Adaptive)
    assert isinstance(make_strategy(fixed(16, 4, adaptive=told(fixed_size=False))), Adaptive)


def test_its_assumptions_survive_json() -> None:
    settings = fixed(16, 4)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("change", "field"),
    [({"fixed_size": 1}, "fixed_size"), ({"trusted": "yes"}, "trusted"), ({"max_tokens": 3}, "max_tokens")],
)
def test_what_is_out_of_range_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_strategy(fixed(16, 4, adaptive=told(**change)))
    assert caught.value.field == field


def test_its_load_takes_as_long_as_the_fixed_part_within_the_servers_limit() -> None:
    costs = Costs(fixed_ms=20.0, compute_ms=0.01, path_ms=0.01, sigma=0.05)
    for limit, sequences in ((None, 250), (400, 100), (4, 1)):
        settings = fixed(16, 4, adaptive=Assumptions(costs, max_tokens=limit, fixed_size=True))
        (first,) = {probe.shape.sequences for probe in drive(settings, noisy(binary())).probes}  # type: ignore[attr-defined]
        assert first == sequences


def test_what_it_can_see_is_diluted_by_the_paths_of_a_clique() -> None:
    costs = Costs(sigma=0.05)
    reach = {
        transport: FixedSize(fixed(64, 8, adaptive=Assumptions(costs, transport=transport, fixed_size=True)))
        .plan()
        .detectable
        for transport in ("serial", "shared", None)
    }
    assert reach[None]["path"] == reach["shared"]["path"] > reach["serial"]["path"] > 5
    assert reach["serial"]["gpu"] == reach["shared"]["gpu"]
    undiluted = FixedSize(fixed(64, 8, sigma=0.05)).plan().detectable
    assert undiluted["gpu"] == undiluted["path"] == pytest.approx(np.exp(2 * 2.3263 * 0.05), abs=1e-3)
