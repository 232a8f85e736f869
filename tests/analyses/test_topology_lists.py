"""Pairs and lists with a topology: who is exactly a host, NIC or leaf is one group; leaves tell what is alike."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest

from app.analyses import Analysis, Topology, analyze
from app.localization.placement import Placement, layout
from tests.analyses.support import codes, named

PLACED = layout(32, 8, nics_per_host=2, leaves=4)


def topology(placement: Placement = PLACED) -> Topology:
    return Topology(dict(enumerate(placement.places)), placement.parents)


def steps(slow: set[int]) -> str:
    """One value a rank, those of some twice as high."""
    noise = np.random.default_rng(1).normal(0, 0.02, 32)
    rows = (f"{rank},{10 * np.exp(noise[rank]) * (2 if rank in slow else 1):.3f}" for rank in range(32))
    return "\n".join(["rank,step_ms", *rows])


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ({4, 5, 6, 7}, "group host-b"),
        ({6, 7}, "NIC host-b/1 {6,7}"),
        (set(range(8, 16)), "leaf 1 {8,9,10,11,12,13,14,15}"),
    ],
)
def test_the_ranks_of_one_part_are_one_group(slow: set[int], name: str) -> None:
    answer = analyze(steps(slow), topology=topology())
    assert named(answer) == [("group", tuple(sorted(slow)))]
    assert (answer.suspects[0].name, answer.suspects[0].slowdown) == (name, pytest.approx(2, rel=0.1))
    assert "shared_part" in codes(answer) or name.startswith("group")


@pytest.mark.parametrize("slow", [{6}, {5, 6}, {6, 7, 8}])
def test_other_ranks_stay_by_themselves(slow: set[int]) -> None:
    assert named(analyze(steps(slow), topology=topology())) == [("gpu", (rank,)) for rank in sorted(slow)]


def test_without_a_topology_nobody_is_grouped() -> None:
    assert named(analyze(steps({6, 7}))) == [("gpu", (6,)), ("gpu", (7,))]


def pairs(slow: set[int], share: float, leaf_step: float = 1.0) -> Analysis:
    """Some of all pairs across hosts, slower across leaves; those with one end of some twice as slow."""
    rng = np.random.default_rng(2)
    rows = []
    for a, b in combinations(range(32), 2):
        one, two = PLACED.places[a], PLACED.places[b]
        if one.host == two.host or rng.random() > share:
            continue
        value = 50 / (leaf_step if one.leaf != two.leaf else 1) / (2 if (a in slow) != (b in slow) else 1)
        rows.append(f"{a},{b},{value * np.exp(rng.normal(0, 0.01)):.3f},GB/s")
    return analyze("\n".join(["rank_a,rank_b,value,unit", *rows]), topology=topology())


def test_pairs_across_leaves_are_compared_among_themselves() -> None:
    assert pairs(set(), 0.2, 3.0).outcome == "healthy"
    assert named(pairs({6}, 0.2, 3.0)) == [("gpu", (6,))]


def test_pairs_whose_slow_ends_are_one_part_name_it() -> None:
    answer = pairs({6, 7}, 0.4, 3.0)
    assert [(s.kind, s.members, s.name) for s in answer.suspects] == [("group", [6, 7], "NIC host-b/1 {6,7}")]
    assert named(pairs({5, 6}, 0.4, 3.0)) == [("gpu", (5,)), ("gpu", (6,))]


def test_a_topology_of_no_rank_leaves_the_places_that_the_input_states() -> None:
    pairs = [[f"{a}", f"{b}", 10 if a // 4 == b // 4 else 40] for a, b in combinations(range(8), 2) if (a + b) % 3]
    placement = {str(rank): f"host-{rank // 4}" for rank in range(8)}
    stated = {"kind": "pair_list", "unit": "us", "higher_is_worse": True, "values": pairs, "placement": placement}
    text = json.dumps(stated)
    assert analyze(text) == analyze(text, topology=Topology({}))
    assert "hop_classes" in codes(analyze(text))


def test_all_pairs_are_judged_as_a_matrix_with_the_topology() -> None:
    answer = pairs({4, 5, 6, 7}, 1.0, 3.0)
    assert named(answer) == [("group", (4, 5, 6, 7))]
    assert answer.suspects[0].name.startswith("uplink of host-b")
