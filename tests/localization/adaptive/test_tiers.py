"""Switches of several tiers: hop classes told apart by them, and slow ones among them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.adaptive.designs import hops_between, hops_mask, mixed_ring, shift_groups, take_turns
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.link_sets import link_groups
from app.localization.adaptive.links import Shared
from app.localization.components import group_of
from app.localization.faults import parse_faults
from app.localization.placement import Placement, SharedPart, layout
from app.localization.simulation import simulate_given
from app.localization.strategies.path_groups import path_groups, told_apart


def tiered(gpus: int, hosts: int, leaves: int, *above: int) -> Placement:
    """A regular placement with so many switches in every tier above the leaves: ``2/0``, ``2/1``, ..."""
    placement, parents, below = layout(gpus, hosts, leaves=leaves), {}, [str(leaf) for leaf in range(leaves)]
    for tier, count in enumerate(above, 2):
        parents |= {name: f"{tier}/{i * count // len(below)}" for i, name in enumerate(below)}
        below = [f"{tier}/{i}" for i in range(count)]
    return Placement(placement.places, parents)


def simulated(placement: Placement, *texts: str, **more: Any) -> Any:
    n = len(placement.places)
    setup = {"n": n, "k": None, "strategy": "adaptive", "model": "physics", "noise": 0.05, "seed": 3, "trials": 3}
    return simulate_given(parse_faults(texts, n, placement), placement=placement, **{**setup, **more})


def test_every_tier_is_told_to_the_engine() -> None:
    placement = tiered(32, 16, 8, 4, 2)
    assert list(placement.shared) == ["rail", "leaf", "tier_2", "tier_3"]
    assert placement.shared["tier_2"] == tuple(rank // 8 for rank in range(32))
    assert placement.shared["tier_3"] == tuple(rank // 16 for rank in range(32))
    assert placement.names("switch") == ("2/0", "2/1", "2/2", "2/3", "3/0", "3/1")
    assert placement.ranks_at(SharedPart("switch", "2/1")) == tuple(range(8, 16))


def test_a_path_crosses_a_switch_that_one_end_is_under() -> None:
    crossing = tiered(32, 16, 8, 4, 2).crosses(SharedPart("switch", "2/1"))
    inside = np.isin(np.arange(32), range(8, 16))
    assert (crossing == np.not_equal.outer(inside, inside)).all()


# --- hop classes

REGULAR = st.sampled_from([(32, 16, 8, 4), (32, 16, 8, 4, 2), (48, 12, 6, 3), (24, 12, 4), (36, 18, 9, 3)])


@given(REGULAR, st.integers(0, 99), st.integers(1, 4))
def test_where_switches_take_turns_every_group_of_shifts_holds_one_hop_class(
    sizes: tuple[int, ...], seed: int, r: int
) -> None:
    placement = tiered(*sizes)
    tiers = {kind: at for kind, at in placement.shared.items() if kind not in {"rail", "nic"}}
    ring = mixed_ring(range(sizes[0]), placement.hosts, np.random.default_rng(seed), list(tiers.values()))
    assert all(take_turns(ring, at) for at in tiers.values())
    switches = [len(set(at)) for at in reversed(tiers.values())]
    groups = shift_groups(len(ring), r, sizes[1], switches)
    assert sorted(shift for group in groups for shift in group) == list(range(1, len(ring) // 2 + 1))
    for group in groups:
        ends = ((u, ring[(place + shift) % len(ring)]) for shift in group for place, u in enumerate(ring))
        assert len({hops_between(pair, placement.hosts, tiers) for pair in ends}) == 1


@given(st.data())
def test_groups_of_any_topology_hold_every_path_once_and_one_hop_class_each(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 24))
    hosts, leaf, upper = (
        tuple(data.draw(st.lists(st.integers(low, most), min_size=n, max_size=n)))
        for low, most in ((0, 5), (-1, 3), (-1, 2))
    )
    tiers = {"leaf": leaf, "tier_2": upper}
    ring = mixed_ring(range(n), hosts, np.random.default_rng(0), list(tiers.values()))
    slower = data.draw(st.sets(st.sampled_from(list(tiers))))
    apart = told_apart(ring, tiers, slower)
    groups = path_groups(ring, PathSweep("any", hosts, 8, data.draw(st.integers(1, 4)), tiers=apart))
    paths = [pair for group in groups for pair in group.pairs]
    assert sorted(paths) == list(combinations(range(n), 2))
    for group in groups:
        assert {hops_between(pair, hosts, apart) for pair in group.pairs} == {group.sweep.hops}
        assert all(group.sweep.holds(pair) for pair in group.pairs)


@given(st.data())
def test_the_mask_says_the_same_as_the_class_of_each_path(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    hosts, leaf, upper = (data.draw(st.lists(st.integers(low, 3), min_size=n, max_size=n)) for low in (0, -1, -1))
    tiers, ring = {"leaf": leaf, "tier_2": upper}, tuple(range(n))
    for hops in ("same_host", "cross_host", "cross_leaf", "cross_tier_2"):
        mask = hops_mask(ring, hops, hosts, tiers)
        for u, v in combinations(ring, 2):
            assert mask[u, v] == mask[v, u] == (hops_between((u, v), hosts, tiers) == hops)


@pytest.mark.slow
def test_a_path_under_one_leaf_is_found_where_all_sends_between_leaves_are_slower() -> None:
    """A fabric may be built so: a slow path under a leaf takes no longer than a healthy one between leaves."""
    placement, built = layout(64, 8, leaves=4), [f"leaf:{leaf}*4" for leaf in range(4)]
    assert simulated(placement, *built, "path:0-8*4")["named"] == {"path:0-8": 3}
    found = simulated(placement, *built)
    assert (found["outcomes"], found["reasons"]) == ({"healthy": 3}, {"hops_slower": 3})


@pytest.mark.slow
def test_of_switches_as_fast_as_what_is_below_them_nothing_is_said() -> None:
    assert simulated(tiered(64, 16, 8, 4), trials=6)["reasons"] == {}


def test_of_several_tiers_the_one_that_takes_longer_is_told() -> None:
    placement = tiered(64, 16, 8, 4)
    setup = {"costs_given": False, "trials": 1}
    notes = simulated(placement, *(f"switch:2/{one}*4" for one in range(4)), **setup)["reasons"]
    assert notes == {"hops_slower": 1}


@pytest.mark.slow
def test_paths_are_compared_with_their_like_where_leaves_are_slower() -> None:
    found = simulated(layout(64, 8, leaves=2), "leaf:0*2", "path:0-8*4", noise=0.0)
    assert found["named"] == {"path:0-8": 3}, found
    assert found["reasons"] == {"leaves_slower": 3}


# --- what is slow of nested parts

LONG = pytest.mark.slow
PARTS = [
    ("switch:2/1*4", "switch"),
    pytest.param("leaf:3*4", "leaf", marks=LONG),
    ("host:host-c*4", "uplink"),
    pytest.param("nic:host-c/1*4", "links", marks=LONG),
    pytest.param("fabric:host-c*4", "fabric", marks=LONG),
    ("path:0-5*4", None),
]


@pytest.mark.parametrize(("fault", "reason"), PARTS)
def test_a_part_is_named_and_not_what_holds_it(fault: str, reason: str | None) -> None:
    """Two hosts a leaf, two leaves a switch: half of a leaf is slow where a host is."""
    found = simulated(tiered(64, 16, 8, 4), fault)
    assert (found["exact_rate"], found["false_accusation_rate"]) == (1, 0), found
    assert reason is None or reason in found["reasons"]


ALSO = [pytest.param(fault, marks=LONG) for fault in ("nic:host-c/1*4", "fabric:host-c*4", "rail:2*4")]


@pytest.mark.parametrize("fault", ["host:host-c*4", "leaf:1*4", *ALSO])
def test_with_two_hosts_a_leaf_it_is_told_which(fault: str) -> None:
    found = simulated(layout(64, 8, leaves=4), fault)
    assert (found["exact_rate"], found["false_accusation_rate"]) == (1, 0), found


@pytest.mark.parametrize("switch", [0, pytest.param(1, marks=LONG)])
def test_of_two_switches_above_leaves_either_may_be_it(switch: int) -> None:
    found = simulated(tiered(64, 16, 8, 2), f"switch:2/{switch}*4")
    assert (found["exact_rate"], found["reasons"]) == (1, {"switch": 3}), found
    assert list(found["named"]) == [str(group_of(range(32)))]


@pytest.mark.parametrize("leaf", [0, pytest.param(3, marks=LONG)])
def test_a_leaf_is_not_taken_for_one_of_two_switches_above(leaf: int) -> None:
    found = simulated(tiered(64, 16, 4, 2), f"leaf:{leaf}*4")
    assert (found["exact_rate"], found["false_accusation_rate"]) == (1, 0), found


@pytest.mark.slow
def test_switches_that_are_a_little_slower_are_noted_and_nobody_is_accused() -> None:
    found = simulated(tiered(64, 16, 8, 2), "switch:2/1*1.8")
    assert (found["named"], list(found["reasons"])) == ({}, ["switches_slower"]), found


@pytest.mark.parametrize(("hosts", "leaves", "hops"), [(4, 2, "cross_leaf"), (8, 2, "cross_host")])
@pytest.mark.parametrize("part", ["links", "nic"])
def test_gpus_exchange_with_those_of_two_other_hosts(hosts: int, leaves: int, hops: str, part: Any) -> None:
    """Of two hosts that exchange with each other only, all GPUs and NICs would be slow where one uplink is."""
    placement = layout(4 * hosts, hosts, leaves=leaves)
    sweep = PathSweep("cross_host", placement.hosts, 8, tiers={"leaf": placement.shared["leaf"]})
    shared = Shared(part, range(4 * hosts))
    groups = link_groups(tuple(range(4 * hosts)), sweep, shared, np.random.default_rng(1))
    assert {group.sweep.hops for group in groups} == {hops}


def test_a_slow_uplink_is_not_taken_for_its_leaf() -> None:
    """In this job the sets of hosts do not show it."""
    found = simulated(layout(16, 4, leaves=2), "host:host-c*4.4", costs_given=False, seed=239, trials=1)
    assert found["false_accusation_rate"] == 0, found
