"""What several GPUs share is named as a group, or nothing is accused."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.adaptive.designs import matchings_by_class
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.link_sets import link_groups
from app.localization.adaptive.links import LinkGroup, Part, Shared
from app.localization.components import Component, gpu, group_of, parse_component, path
from app.localization.errors import SettingsError
from app.localization.events import Event
from app.localization.faults import Fault, parse_faults
from app.localization.physics import PhysicsReplica
from app.localization.placement import SharedPart, layout
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.shapes import Exchange
from app.localization.simulation import simulate_given
from tests.localization.adaptive.sessions import COSTS, UNKNOWN, adaptive, answered, reading


def simulated(*texts: str, n: int = 32, hosts: int = 8, noise: float = 0.0, trials: int = 1, **more: Any) -> Any:
    placement = layout(n, hosts, **more)
    setup = {
        "n": n,
        "k": None,
        "strategy": "adaptive",
        "model": "physics",
        "noise": noise,
        "trials": trials,
        "seed": 3,
    }
    return simulate_given(parse_faults(texts, n, placement), placement=placement, **setup)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("host:host-b*4", "uplink"),
        ("fabric:host-c*4", "fabric"),
        ("rail:1*4", "rail"),
        ("nic:host-b/1*4", "links"),
    ],
)
def test_a_shared_part_is_named(fault: str, reason: str) -> None:
    result = simulated(fault)
    assert (result["exact_rate"], result["expected"]) == (1, [fault.partition("*")[0]])
    assert result["reasons"] == {reason: 1}


@pytest.mark.parametrize(("n", "rails"), [(16, 2), (12, 3)])
@pytest.mark.parametrize("fault", ["rail:0*4", "nic:host-b/1*5", "host:host-b*5"])
def test_one_of_two_or_three_rails_is_named_and_no_part_is_taken_for_a_rail(
    n: int, rails: int, fault: str
) -> None:
    found = simulated(fault, n=n, hosts=4, leaves=1, nics_per_host=rails, noise=0.05, trials=3)
    assert found["exact_rate"] == 1, found


def test_of_rails_alike_nothing_is_said() -> None:
    found = simulated(n=16, hosts=4, leaves=1, nics_per_host=2, noise=0.05, trials=6)
    assert (found["outcomes"], found["reasons"]) == ({"healthy": 6}, {})


def test_a_slow_uplink_of_two_hosts_is_told_and_neither_accused() -> None:
    found = simulated("host:host-b*5", n=16, hosts=2, leaves=1, noise=0.05, trials=4)
    assert (found["outcomes"], found["reasons"]) == ({"healthy": 4}, {"hops_slower": 4})


@pytest.mark.parametrize(
    ("fault", "hosts", "nics", "reason"),
    [("fabric:host-b*6", 2, None, "fabric"), ("host:host-b*6", 3, 4, "uplink"), ("nic:host-b/1*6", 3, 2, "nic")],
)
def test_what_is_of_too_few_to_be_compared_is_named_as_one(
    fault: str, hosts: int, nics: int | None, reason: str
) -> None:
    """Two hosts, three uplinks, six NICs on three hosts: its GPUs are accused one by one, and taken together."""
    result = simulated(fault, n=12, hosts=hosts, nics_per_host=nics, leaves=1)
    assert result["exact_rate"] == 1, (result["named"], result["reasons"])
    assert reason in result["reasons"]
    assert len(result["named"]) == 1


def test_parts_with_the_same_gpus_are_all_told() -> None:
    """A leaf over one host, a host with one NIC: what is slow may be any of them."""
    result = simulated("host:host-c*4", hosts=8, leaves=8, nics_per_host=1)
    assert result["exact_rate"] == 1
    assert set(result["reasons"]) == {"leaf", "uplink", "nic"}


def test_a_nic_of_two_gpus_is_named_and_not_its_host() -> None:
    result = simulated("nic:host-b/1*4", nics_per_host=2)
    assert (result["exact_rate"], result["reasons"]) == (1, {"nic": 1})
    assert list(result["named"]) == ["group:6-7"]


def test_a_leaf_among_four_is_named() -> None:
    result = simulated("leaf:2*4", leaves=4)
    assert (result["exact_rate"], result["reasons"]) == (1, {"leaf": 1})


@pytest.mark.parametrize("leaf", range(3))
def test_a_leaf_among_three_is_named(leaf: int) -> None:
    result = simulated(f"leaf:{leaf}*4", n=36, hosts=9, leaves=3)
    assert (result["exact_rate"], result["reasons"]) == (1, {"leaf": 1})


@pytest.mark.parametrize("leaf", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_of_two_leaves_either_may_be_it(leaf: int) -> None:
    result = simulated(f"leaf:{leaf}*4", noise=0.05, trials=5)
    assert (result["exact_rate"], result["reasons"]) == (1, {"leaf": 5})
    placement = layout(32, 8)
    faults = parse_faults([f"leaf:{leaf}*4"], 32, placement)
    replica = PhysicsReplica(32, faults, COSTS, "serial", placement=placement)
    run = answered(adaptive(32, UNKNOWN, hosts=placement.hosts, shared=placement.shared), replica.answer)
    (suspect,) = run.verdict.suspects
    assert suspect.members == list(range(16))
    assert suspect.alternatives == [str(group_of(tuple(range(16, 32))))]
    assert suspect.accusing


@pytest.mark.parametrize("burst", range(4))
def test_one_reading_that_a_burst_raised_hides_no_slow_leaf(burst: int) -> None:
    placement = layout(32, 8)
    replica = PhysicsReplica(32, parse_faults(["leaf:1*4"], 32, placement), COSTS, "serial", placement=placement)
    leaf, under_one = placement.shared["leaf"], []

    def answer(probe: Probe, number: int) -> Event:
        paths = [component.members for component in probe.components() if component.kind == "path"]
        if len(paths) == 1 and len({leaf[rank] for rank in paths[0]}) == 1:
            under_one.append(number)
        raised = bool(under_one) and number == under_one[-1] and len(under_one) == burst + 1
        return reading(probe, replica.step_ms(probe.shape) * (2 if raised else 1))

    run = answered(adaptive(32, UNKNOWN, hosts=placement.hosts, shared=placement.shared), answer)
    assert len(under_one) > burst
    assert run.verdict.names == [str(group_of(tuple(range(16))))], run.verdict.reasons


def test_leaves_that_are_a_little_slower_are_noted_and_nobody_is_accused() -> None:
    result = simulated("leaf:1*2")
    assert (result["outcomes"], result["named"], result["reasons"]) == (
        {"inconclusive": 1},
        {},
        {"leaves_slower": 1},
    )


def test_three_leaves_that_are_all_slow_to_each_other_are_equals() -> None:
    result = simulated("leaf:0*4", "leaf:1*4", "leaf:2*4", n=36, hosts=9, leaves=3)
    assert (result["outcomes"], result["reasons"]) == ({"localized": 1}, {"leaf": 1})
    assert list(result["named"]) == ["group:" + "-".join(map(str, range(12)))]


@pytest.mark.parametrize("fault", ["host:host-b*4", "rail:1*4", "gpu:9*1.6", "path:3-17*4"])
def test_under_noise(fault: str) -> None:
    result = simulated(fault, noise=0.05, trials=5)
    assert (result["exact_rate"], result["false_accusation_rate"]) == (1, 0)


def test_two_at_once() -> None:
    result = simulated("host:host-b*4", "fabric:host-e*4")
    assert sorted(result["named"]) == ["group:16-17-18-19", "group:4-5-6-7"]


def test_a_healthy_replica_with_a_topology_is_healthy() -> None:
    result = simulated("gpu:0*1.001", noise=0.05, trials=6)
    assert (result["outcomes"], result["named"]) == ({"healthy": 6}, {})


def test_two_slow_gpus_of_a_host_are_not_its_uplink() -> None:
    result = simulated("nic:host-b/0*4", "nic:host-b/1*4")
    assert sorted(result["named"]) == ["gpu:4", "gpu:5"]


def test_what_a_group_hides_is_said() -> None:
    placement = layout(32, 8)
    replica = PhysicsReplica(
        32, parse_faults(["host:host-b*4"], 32, placement), COSTS, "serial", placement=placement
    )
    run = answered(adaptive(32, UNKNOWN, hosts=placement.hosts, shared=placement.shared), replica.answer)
    assert run.verdict.names == ["group:4-5-6-7"]
    assert run.verdict.masked == [f"path:{rank}-*" for rank in (4, 5, 6, 7)]


def farther(hosts: tuple[int, ...], *faults: Fault) -> list[Fault]:
    """Paths between hosts that take longer by design, and faults."""
    pairs = combinations(range(len(hosts)), 2)
    return [Fault(path(u, v), 2.0) for u, v in pairs if hosts[u] != hosts[v]] + list(faults)


@pytest.mark.parametrize("hosts", [(0,) * 3 + (1,) * 5, (0,) * 5 + (1,) * 7 + (2,) * 6])
@pytest.mark.parametrize("slow", [[], [path(0, 1)], [path(2, 7)], [gpu(1)]], ids=str)
def test_with_hosts_of_any_size_only_paths_of_one_kind_are_compared(
    hosts: tuple[int, ...], slow: list[Component]
) -> None:
    """What lies between hosts is no fault; a GPU that drops out makes hosts unequal, too."""
    faults = farther(hosts, *(Fault(component, 4.0) for component in slow))
    replica = PhysicsReplica(len(hosts), faults, COSTS, "serial")
    run = answered(adaptive(len(hosts), UNKNOWN, hosts=hosts), replica.answer)
    assert run.verdict.names == [str(component) for component in slow]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=40))
def test_matchings_by_class_hold_every_path_once(hosts: list[int]) -> None:
    ring = tuple(range(len(hosts)))
    by_class = matchings_by_class(ring, range(1, len(ring) // 2 + 1), hosts)
    pairs = [pair for some in by_class.values() for matching in some for pair in matching]
    assert sorted(pairs) == list(combinations(ring, 2))
    for hops, some in by_class.items():
        for matching in some:
            ranks = [rank for pair in matching for rank in pair]
            assert len(set(ranks)) == len(ranks)
            assert all((hosts[u] == hosts[v]) == (hops == "same_host") for u, v in matching)


# --- the groups


def uplinks(leaves: tuple[int, ...] = ()) -> list[LinkGroup]:
    placement = layout(32, 8)
    sweep = PathSweep("cross_host", placement.hosts, width=8, tiers={"leaf": leaves} if leaves else {})
    shared = Shared("uplink", placement.hosts)
    return link_groups(tuple(range(32)), sweep, shared, np.random.default_rng(0))


def test_exchanges_stay_under_a_leaf_where_there_is_one() -> None:
    leaves = layout(32, 8).shared["leaf"]
    for group in uplinks(leaves):
        shape = group.whole().shape
        assert isinstance(shape, Exchange)
        assert set(group.ranks) == {rank for pair in shape.pairs for rank in pair}
        assert all(leaves[u] == leaves[v] for u, v in shape.pairs)


def test_a_host_alone_is_tested_by_other_gpus_of_it_every_time() -> None:
    group = uplinks()[0]
    seen = []
    for _ in range(4):
        shape = group.cut(0, 1).shape
        assert isinstance(shape, Exchange)
        seen += [rank for pair in shape.pairs for rank in pair if rank in group.units[0]]
    assert sorted(seen) == sorted(group.units[0])


PARTS: tuple[Part, ...] = ("leaf", "uplink", "fabric", "rail", "nic", "links")


@given(st.data())
def test_every_set_can_exchange_whoever_has_dropped_out(data: st.DataObject) -> None:
    """A rail may lose its last partner under a leaf, a host all GPUs but one: no set needs one who is gone."""
    n = data.draw(st.integers(5, 40))
    hosts, leaves, labels = (
        tuple(data.draw(st.lists(st.integers(low, most), min_size=n, max_size=n)))
        for low, most in ((0, 9), (-1, 3), (-1, 9))
    )
    ring = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2))))
    part = data.draw(st.sampled_from(PARTS))
    units = {"uplink": hosts, "fabric": hosts, "leaf": leaves, "links": tuple(range(n))}.get(part, labels)
    sweep = PathSweep("same_host" if part == "fabric" else "cross_host", hosts, width=8, tiers={"leaf": leaves})
    shared = Shared(part, units, tier="leaf" if part == "leaf" else "")
    for group in link_groups(ring, sweep, shared, np.random.default_rng(0), strict=data.draw(st.booleans())):
        for test in [group.whole(), *(group.cut(item, item + 1) for item in range(len(group.units)))]:
            shape = test.shape
            assert isinstance(shape, Exchange)
            assert {rank for pair in shape.pairs for rank in pair} <= set(ring)
            assert all(group.shared.holds(pair) and group.sweep.holds(pair) for pair in shape.pairs)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_gpu_may_leave_another_without_a_partner_on_its_rail(seed: int) -> None:
    placement = layout(16, 4)
    setup = {"n": 16, "strategy": "adaptive", "model": "physics", "costs_given": False, "trials": 1, "seed": seed}
    found = simulate_given(parse_faults(["gpu:12*2"], 16, placement), placement=placement, **setup)
    assert found["exact_rate"] == 1


# --- words


def test_groups_are_components() -> None:
    assert parse_component("group:4-5-6") == group_of([6, 4, 5]) == Component("group", (4, 5, 6))
    assert group_of([7]) == Component("gpu", (7,))
    with pytest.raises(ValueError, match="2 or more ascending ranks"):
        Component("group", (4,))


def test_settings_keep_what_is_shared() -> None:
    settings = Settings(gpus=4, k=2, hosts=(0, 0, 1, 1), shared={"rail": (0, 1, 0, 1)})
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    for shared, field in (
        ({"rail": [0]}, "shared.rail"),
        ({"rack": [0] * 4}, "shared"),
        ({"rail": 3}, "shared.rail"),
    ):
        with pytest.raises(SettingsError) as refused:
            Settings.from_dict({"gpus": 4, "k": 2, "shared": shared})
        assert refused.value.field == field


def test_what_no_two_gpus_share_is_left_out() -> None:
    assert set(layout(32, 8).shared) == {"rail", "leaf"}
    assert set(layout(32, 8, nics_per_host=2).shared) == {"nic", "rail", "leaf"}


def test_the_physics_model_slows_every_path_of_a_part() -> None:
    placement = layout(8, 4)
    part = SharedPart("host", "host-b")
    replica = PhysicsReplica(
        8, parse_faults(["host:host-b*3"], 8, placement), COSTS, "serial", placement=placement
    )
    ranks = tuple(range(8))
    for u, v in ((0, 2), (2, 3), (0, 4)):
        slow = replica.step_ms(Exchange(ranks, ((u, v),), 8)) > COSTS.healthy_ms(8, over_paths=True) + 1e-6
        assert slow == placement.crosses(part)[u, v]
    with pytest.raises(SettingsError, match="needs a topology"):
        PhysicsReplica(8, parse_faults(["host:host-b*3"], 8, placement), COSTS, "serial")


@pytest.mark.parametrize("host", "abc")
def test_a_slow_uplink_among_three_is_named(host: str) -> None:
    result = simulated(f"host:host-{host}*6", n=24, hosts=3, leaves=1, noise=0.05, trials=3)
    assert (result["exact_rate"], result["reasons"]) == (1, {"uplink": 3})


def test_three_healthy_hosts_are_healthy() -> None:
    result = simulated("gpu:0*1.0001", n=24, hosts=3, leaves=1, noise=0.05, trials=6)
    assert (result["outcomes"], result["named"]) == ({"healthy": 6}, {})
