"""Matrices with a topology: healthy steps accuse nobody, and a slow shared part is named with its ranks."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analyses import Topology
from app.analyses.judge_matrix import judge_matrix
from app.analyses.records import PathMatrix
from app.localization.placement import Place, Placement, SharedPart, layout
from tests.analyses.support import Logs, codes, latencies, named, slow_gpu, slow_path

SEEDS = st.integers(0, 2**32 - 1)
KINDS = ("nic", "host", "fabric", "leaf", "rail")


def placed(logs: Logs, placement: Placement) -> PathMatrix:
    """A latency matrix of ranks that sit so."""
    hosts = [place.host for place in placement.places]
    return replace(latencies(logs, hosts), topology=Topology(dict(enumerate(placement.places)), placement.parents))


def steps(placement: Placement, seed: int, across: float = 2.0, leaves: float = 4.0, sigma: float = 0.05) -> Logs:
    """Healthy: within a host 1x, across hosts slower, across leaves slower still."""
    level = np.log([1.0, across, across, across * leaves])[placement.hop_codes]
    return level + np.random.default_rng(seed).normal(0, sigma, level.shape)


def slow_part(logs: Logs, placement: Placement, kind: str, name: str, times: float = 2.0) -> Logs:
    return logs + np.log(times) * placement.crosses(SharedPart(kind, name))  # type: ignore[arg-type]


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Hosts of unlike size, anywhere under some leaves; leaves and rails stated or not, ranks in any order."""
    leaves, rails, size = draw(st.integers(0, 5)), draw(st.booleans()), draw(st.integers(1, 8))
    by_nic = draw(st.booleans())
    places = []
    for host in range(draw(st.integers(1, 10))):
        gpus, under = draw(st.integers(1, size)), draw(st.integers(0, max(0, leaves - 1)))
        nics = draw(st.integers(1, gpus))
        for i in range(gpus):
            nic = str(i * nics // gpus)
            leaf = f"leaf-{nic if by_nic else under}" if leaves else None
            places.append(Place(f"host-{host}", None, nic, nic if rails else None, leaf))
    while len(places) < 4:
        places.append(places[-1])
    stated = sorted({place.leaf for place in places if place.leaf})
    pods = draw(st.booleans())
    parents = {leaf: f"spine-{int(leaf[5:]) // 2}" for leaf in stated} if pods else {}
    return Placement(tuple(draw(st.permutations(places))), parents)


@given(placements(), st.floats(1, 4), SEEDS)
@settings(max_examples=300, deadline=None)
def test_a_healthy_matrix_of_any_topology_accuses_nobody(placement: Placement, leaves: float, seed: int) -> None:
    answer = judge_matrix(placed(steps(placement, seed, leaves=leaves), placement))
    assert named(answer) == []


@pytest.mark.parametrize("nics", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_part_is_named_with_its_ranks(kind: str, nics: int) -> None:
    placement = layout(64, 8, nics_per_host=nics, leaves=4)
    names = placement.names(kind)  # type: ignore[arg-type]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        name, times = names[rng.integers(len(names))], rng.uniform(2, 3)
        logs = slow_part(steps(placement, seed, leaves=rng.uniform(1, 4)), placement, kind, name, times)
        answer = judge_matrix(placed(logs, placement))
        assert named(answer) == [("group", placement.ranks_at(SharedPart(kind, name)))]  # type: ignore[arg-type]
        assert answer.suspects[0].slowdown == pytest.approx(times, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "name", "said", "spared"),
    [
        (
            "nic",
            "host-b/1",
            "NIC host-b/1 {12,13,14,15}",
            "all 4 ranks there are 2.0x slower than their like to other hosts, and not inside their host",
        ),
        ("host", "host-b", "uplink of host-b {8,9,10,11,12,13,14,15}", "to other hosts, and not inside the host"),
        (
            "fabric",
            "host-b",
            "fabric of host-b {8,9,10,11,12,13,14,15}",
            "inside the host, and not to other hosts",
        ),
        ("leaf", "1", "leaf 1 {16,", "to other leaves, and not below it"),
        ("rail", "1", "rail 1 {4,5,6,7,12,", "to each other along it"),
    ],
)
def test_the_reason_says_which_part_it_is_and_what_is_not_slow(
    kind: str, name: str, said: str, spared: str
) -> None:
    placement = layout(64, 8, nics_per_host=2, leaves=4)
    answer = judge_matrix(placed(slow_part(steps(placement, 1), placement, kind, name), placement))
    (suspect,) = answer.suspects
    (text,) = (reason.text for reason in answer.reasons if reason.code == "shared_part")
    assert suspect.name.startswith(said)
    assert spared in text


def test_a_host_that_is_slow_inside_as_well_is_named_as_a_whole() -> None:
    placement = layout(64, 8, nics_per_host=2, leaves=4)
    logs = slow_part(steps(placement, 1), placement, "fabric", "host-b")
    answer = judge_matrix(placed(slow_part(logs, placement, "host", "host-b"), placement))
    assert [(s.name.partition(" {")[0], len(s.members)) for s in answer.suspects] == [("group host-b", 8)]


def test_a_host_that_also_has_a_slower_inside_is_not_called_an_uplink() -> None:
    """Slow to others, and a little slow inside: a cause that is not the uplink's alone."""
    placement = layout(64, 8, nics_per_host=2, leaves=4)
    logs = slow_part(steps(placement, 1), placement, "fabric", "host-b", 1.5)
    answer = judge_matrix(placed(slow_part(logs, placement, "host", "host-b", 2.8), placement))
    assert not any(s.name.startswith("uplink") for s in answer.suspects)


@pytest.mark.parametrize(("hosts", "leaves"), [(6, 3), (4, 2), (4, 1)])
def test_the_uplink_of_one_of_few_hosts_is_named_in_its_hop_classes(hosts: int, leaves: int) -> None:
    placement = layout(8 * hosts, hosts, nics_per_host=2, leaves=leaves)
    slow = slow_part(steps(placement, 2, leaves=2), placement, "host", "host-b")
    (suspect,) = judge_matrix(placed(slow, placement)).suspects
    assert suspect.name == "uplink of host-b {8,9,10,11,12,13,14,15}"


@pytest.mark.parametrize(("hosts", "leaves"), [(3, 3), (6, 3)])
def test_one_of_three_may_only_be_farther_away(hosts: int, leaves: int) -> None:
    """Two of three slow pairs are no odd one out; and none of the hosts, NICs and ranks below is to blame."""
    placement = layout(8 * hosts, hosts, nics_per_host=2, leaves=leaves)
    slow = slow_part(steps(placement, 3, leaves=1), placement, "leaf", "1")
    assert named(judge_matrix(placed(slow, placement))) == []


@pytest.mark.parametrize(
    ("leaves", "slow"),
    [
        # The NICs, and the inside of another host, stand out when the uplink itself cannot be named.
        ((0, 1, 2, 2), "0"),
        ((0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2), "2"),
        ((0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2), "0"),
    ],
)
def test_what_is_in_one_of_three_leaves_is_not_blamed_for_it(leaves: tuple[int, ...], slow: str) -> None:
    plain = layout(8 * len(leaves), len(leaves), nics_per_host=2)
    places = [replace(place, rail=None, leaf=str(leaves[i // 8])) for i, place in enumerate(plain.places)]
    placement = Placement(tuple(places))
    for seed in range(4):
        logs = slow_part(steps(placement, seed, leaves=1.5), placement, "leaf", slow)
        assert named(judge_matrix(placed(logs, placement))) == []


def test_two_hosts_that_are_near_each_other_are_not_two_slow_uplinks() -> None:
    """Of twelve hosts two are under a switch that the topology does not state."""
    plain = layout(96, 12)
    placement = Placement(tuple(Place(place.host) for place in plain.places))
    far = np.isin(placement.hosts, (0, 1))
    logs = steps(placement, 4) + np.log(3) * (far[:, None] != far[None, :])
    answer = judge_matrix(placed(logs, placement))
    assert named(answer) == []
    assert named(judge_matrix(placed(slow_part(logs, placement, "host", "host-f"), placement))) == [
        ("group", tuple(range(40, 48)))
    ]


def test_parts_with_the_same_paths_are_said_to_be_alike() -> None:
    placement = layout(64, 8, nics_per_host=1, leaves=8)
    answer = judge_matrix(placed(slow_part(steps(placement, 1), placement, "host", "host-b"), placement))
    assert [suspect.members for suspect in answer.suspects] == [[*range(8, 16)]]
    (text,) = (reason.text for reason in answer.reasons if reason.code == "shared_part")
    assert text.endswith("the same paths are those of NIC host-b/0, leaf 1")


def test_a_group_of_switches_is_a_part() -> None:
    plain = layout(64, 16, leaves=8)
    placement = Placement(plain.places, {str(leaf): f"spine-{leaf // 2}" for leaf in range(8)})
    members = np.arange(16, 32)
    inside = np.isin(np.arange(64), members)
    logs = steps(placement, 1)
    beyond = np.array([int(place.leaf or 0) // 2 for place in placement.places])
    logs += np.log(1.5) * (beyond[:, None] != beyond[None, :])
    assert named(judge_matrix(placed(logs, placement))) == []
    logs[inside[:, None] != inside[None, :]] += np.log(2)
    answer = judge_matrix(placed(logs, placement))
    assert named(answer) == [("group", tuple(members))]
    assert answer.suspects[0].name.startswith("switch spine-1 {16,")


@pytest.mark.parametrize(("hosts", "leaves"), [(8, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("times", [1.5, 3.0, 8.0])
def test_the_step_between_two_may_be_the_fabric_as_it_is(hosts: int, leaves: int, times: float) -> None:
    placement = layout(64, hosts, leaves=leaves)
    logs = steps(placement, 2, leaves=1)
    part = ("leaf", "1") if hosts > 2 else ("host", "host-b")
    slow = placed(slow_part(logs, placement, *part, times), placement)
    assert named(judge_matrix(slow)) == []
    against = judge_matrix(replace(slow, baseline=np.exp(logs)))
    assert named(against) == [("group", tuple(range(64)))]
    assert against.suspects[0].slowdown == pytest.approx(times, rel=0.1)


def test_two_parts_and_a_rank_are_told_apart() -> None:
    placement = layout(64, 8, nics_per_host=4, leaves=4)
    logs = slow_part(steps(placement, 3), placement, "leaf", "2", 2.5)
    logs = slow_gpu(slow_part(logs, placement, "host", "host-b"), 60, 3.0)
    answer = judge_matrix(placed(logs, placement))
    assert sorted(named(answer)) == [
        ("gpu", (60,)),
        ("group", tuple(range(8, 16))),
        ("group", tuple(range(32, 48))),
    ]


def test_one_direction_of_a_part_is_said() -> None:
    placement = layout(64, 8, nics_per_host=2, leaves=4)
    logs = steps(placement, 4)
    logs[8:16, :8] += np.log(3)
    logs[8:16, 16:] += np.log(3)
    answer = judge_matrix(placed(logs, placement))
    assert named(answer) == [("group", tuple(range(8, 16)))]
    assert answer.suspects[0].slowdown == pytest.approx(3, rel=0.1)
    assert any(r.code == "one_direction" and "rows" in r.text for r in answer.reasons)


def test_most_of_a_part_is_not_the_part() -> None:
    placement = layout(64, 8, nics_per_host=2, leaves=4)
    logs = steps(placement, 5)
    for rank in (8, 9, 10):
        far = np.arange(64) // 8 != 1
        logs[rank, far] += np.log(2)
        logs[far, rank] += np.log(2)
    answer = judge_matrix(placed(logs, placement))
    assert not any(kind == "group" for kind, _ in named(answer))


@pytest.mark.parametrize(("hosts", "nics", "leaves"), [(8, 2, 4), (8, 8, 2), (16, 2, 4), (4, 4, 4)])
def test_single_ranks_and_paths_are_found_as_with_hosts_alone(hosts: int, nics: int, leaves: int) -> None:
    placement = layout(64, hosts, nics_per_host=nics, leaves=leaves)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        a, b = sorted(map(int, rng.choice(64, 2, replace=False)))
        logs = steps(placement, seed, leaves=rng.uniform(1, 4))
        assert named(judge_matrix(placed(slow_gpu(logs, a), placement))) == [("gpu", (a,))]
        assert named(judge_matrix(placed(slow_path(logs, a, b, 2.5), placement))) == [("path", (a, b))]


def test_who_may_only_be_farther_away_is_not_named() -> None:
    """Rank 5 alone is under the other leaf: with its host alone it looks like a slow GPU."""
    placement = layout(6, ["a", "a", "b", "b", "c", "d"])
    places = [replace(place, leaf="1" if i == 5 else "0") for i, place in enumerate(placement.places)]
    far = Placement(tuple(places))
    matrix = placed(steps(far, 6, leaves=2.5), far)
    assert named(judge_matrix(replace(matrix, topology=None))) == [("gpu", (5,))]
    answer = judge_matrix(matrix)
    assert (answer.outcome, named(answer)) == ("inconclusive", [])
    assert "class_too_small" in codes(answer)


def test_levels_that_contradict_the_topology_name_no_crowd() -> None:
    placement = layout(256, 32, nics_per_host=4, leaves=8)
    pod = np.arange(256) // 40
    logs = steps(placement, 7, leaves=3) + np.log(2) * (pod[:, None] != pod[None, :])
    assert named(judge_matrix(placed(logs, placement))) == []


@pytest.mark.parametrize("kind", ["nic", "leaf"])
def test_512_ranks_with_a_topology_take_no_longer_than_two_seconds(kind: str) -> None:
    placement = layout(512, 64, nics_per_host=4, leaves=16)
    name = placement.names(kind)[3]  # type: ignore[arg-type]
    matrix = placed(slow_part(steps(placement, 8), placement, kind, name), placement)
    started = time.process_time()
    assert named(judge_matrix(matrix)) == [("group", placement.ranks_at(SharedPart(kind, name)))]  # type: ignore[arg-type]
    assert time.process_time() - started <= 2
