"""Matrices: nobody is accused in a healthy one, planted faults are found, and only ratios and neighbours count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analyses.judge_matrix import judge_matrix
from app.analyses.records import PathMatrix
from tests.analyses.support import codes, healthy, latencies, named, slow_gpu, slow_path

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.sampled_from([(4, 1), (6, 1), (8, 1), (8, 2), (12, 3), (16, 2), (16, 4), (32, 4)])


@given(SHAPES, st.sampled_from([0.05, 0.1]), st.floats(1.1, 30), SEEDS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_healthy_matrix_accuses_nobody(
    shape: tuple[int, int], sigma: float, step: float, seed: int, placed: bool
) -> None:
    logs, hosts = healthy(shape[0], sigma, seed, shape[1], step)
    assert named(judge_matrix(latencies(logs, hosts if placed else None))) == []


@given(st.sampled_from([(8, 1), (8, 2), (16, 2), (16, 4), (32, 4)]), st.floats(1.1, 20), SEEDS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_slow_gpu_is_found(shape: tuple[int, int], step: float, seed: int, placed: bool) -> None:
    n, blocks = shape
    logs, hosts = healthy(n, 0.05, seed, blocks, step)
    rank = seed % n
    answer = judge_matrix(latencies(slow_gpu(logs, rank), hosts if placed else None))
    assert named(answer) == [("gpu", (rank,))]
    assert answer.suspects[0].slowdown == pytest.approx(2, rel=0.15)


@given(st.sampled_from([(12, 1), (16, 2), (16, 4), (32, 4)]), st.floats(1.1, 20), SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_slow_path_is_found(shape: tuple[int, int], step: float, seed: int) -> None:
    n, blocks = shape
    logs, hosts = healthy(n, 0.05, seed, blocks, step)
    a, b = sorted((seed % n, (seed % n + 1 + seed % (n - 1)) % n))
    assert named(judge_matrix(latencies(slow_path(logs, a, b, 2.5), hosts))) == [("path", (a, b))]


@given(st.integers(0, 3), SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_uplink_of_a_host_is_a_group(host: int, seed: int) -> None:
    logs, hosts = healthy(32, 0.05, seed, 4, 5.0)
    members = tuple(range(8 * host, 8 * host + 8))
    mine = np.isin(np.arange(32), members)
    logs[mine[:, None] != mine[None, :]] += np.log(2)
    assert named(judge_matrix(latencies(logs, hosts))) == [("group", members)]


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_fabric_inside_a_host_and_the_paths_between_two_hosts_are_groups(seed: int) -> None:
    logs, hosts = healthy(32, 0.05, seed, 4, 5.0)
    inside, between = logs.copy(), logs.copy()
    inside[8:16, 8:16] += np.log(2)
    between[8:16, 16:24] += np.log(2)
    between[16:24, 8:16] += np.log(2)
    (one,) = judge_matrix(latencies(inside, hosts)).suspects
    assert (one.kind, one.members, one.name) == (
        "group",
        [*range(8, 16)],
        f"paths within {{{','.join(map(str, range(8, 16)))}}}",
    )
    (two,) = judge_matrix(latencies(between, hosts)).suspects
    assert (two.kind, two.members) == ("group", [*range(8, 24)])


@given(SEEDS, st.permutations(range(16)), st.floats(1e-6, 1e6))
@settings(max_examples=25, deadline=None)
def test_renumbering_renumbers_and_scaling_does_nothing(seed: int, order: list[int], scale: float) -> None:
    logs, _ = healthy(16, 0.05, seed, 2, 4.0)
    logs = slow_path(slow_gpu(logs, 3), 9, 12, 3.0)
    before = named(judge_matrix(latencies(logs)))
    assert before == [("gpu", (3,)), ("path", (9, 12))]
    index = np.array(order)
    moved = PathMatrix(order, scale * np.exp(logs[np.ix_(index, index)]), "high")
    assert named(judge_matrix(moved)) == before


def test_bandwidths_are_latencies_upside_down() -> None:
    logs, _ = healthy(8, 0.05, 1)
    logs = slow_gpu(logs, 5)
    high = latencies(logs)
    low = replace(high, values=np.exp(-logs), bad="low")
    assert named(judge_matrix(low)) == named(judge_matrix(high)) == [("gpu", (5,))]


def test_two_and_three_ranks_have_no_majority() -> None:
    pair = np.array([[np.nan, 50.0], [25.0, np.nan]])
    assert codes(judge_matrix(PathMatrix([0, 1], pair, "low"))) == {"no_reference"}
    three = np.array([[np.nan, 50.0, 50.0], [50.0, np.nan, 20.0], [50.0, 20.0, np.nan]])
    answer = judge_matrix(PathMatrix([0, 1, 2], three, "low"))
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"no_reference"})


def test_everything_slow_alike_needs_a_baseline() -> None:
    logs, _ = healthy(8, 0.02, 3)
    alone = latencies(logs + 1.0)
    assert judge_matrix(alone).outcome == "healthy"
    answer = judge_matrix(replace(alone, baseline=np.exp(logs)))
    assert (answer.outcome, named(answer)) == ("uniform_slowdown", [])


def test_a_step_between_two_halves_is_a_fault_against_a_baseline_or_beyond_what_sockets_explain() -> None:
    mild, _ = healthy(8, 0.02, 4, 2, 2.5)
    steep, _ = healthy(8, 0.02, 4, 2, 7.0)
    between = [("group", tuple(range(8)))]
    assert named(judge_matrix(replace(latencies(mild), one_host=True))) == []
    assert named(judge_matrix(replace(latencies(steep), one_host=True))) == between
    assert named(judge_matrix(latencies(steep, ["a"] * 4 + ["b"] * 4))) == []
    flat, _ = healthy(8, 0.02, 5)
    assert named(judge_matrix(replace(latencies(mild), baseline=np.exp(flat)))) == between


def test_a_step_that_may_be_one_of_hosts_is_open_where_nobody_says_where_the_ranks_sit() -> None:
    steep, _ = healthy(8, 0.02, 4, 2, 7.0)
    answer = judge_matrix(latencies(steep))
    assert (answer.outcome, named(answer)) == ("inconclusive", [])
    assert "block_step" in codes(answer)


def test_pairs_under_one_switch_that_are_all_slower_are_a_hop_class() -> None:
    logs, _ = healthy(8, 0.03, 6)
    pair = np.arange(8) // 2
    logs[pair[:, None] == pair[None, :]] += np.log(2.5)
    assert named(judge_matrix(latencies(logs))) == []


def test_ranks_that_are_slow_to_all_but_each_other_are_not_called_slow() -> None:
    logs, _ = healthy(16, 0.03, 7)
    mine = np.isin(np.arange(16), (4, 5))
    logs[mine[:, None] != mine[None, :]] += np.log(2)
    assert named(judge_matrix(latencies(logs))) == []


def test_one_direction_is_said() -> None:
    logs, _ = healthy(16, 0.03, 8)
    logs[2, 9] += np.log(3)
    answer = judge_matrix(latencies(logs))
    assert named(answer) == [("path", (2, 9))]
    assert "one_direction" in codes(answer)


def test_rows_that_differ_wildly_are_not_called_healthy() -> None:
    logs, _ = healthy(8, 0.05, 9)
    logs += np.linspace(0, 3, 8)[:, None]
    answer = judge_matrix(latencies(logs))
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"uneven"})


def test_halves_joined_by_a_faster_fabric_than_pcie_are_normal() -> None:
    logs, _ = healthy(8, 0.02, 10, 2, 12.0)
    islands = PathMatrix(list(range(8)), 500 * np.exp(-logs), "low", one_host=True, in_gb=True)
    assert named(judge_matrix(islands)) == []
    assert named(judge_matrix(replace(islands, values=islands.values / 5))) == [("group", tuple(range(8)))]


def test_a_slow_path_between_neighbours_of_a_ring() -> None:
    apart = (np.arange(16)[:, None] - np.arange(16)[None, :]) % 16
    logs, _ = healthy(16, 0.03, 11)
    logs += np.where((apart <= 2) | (apart >= 14), 0.0, np.log(6))
    assert named(judge_matrix(latencies(logs))) == []
    assert named(judge_matrix(latencies(slow_path(logs, 3, 4, 2.0)))) == [("path", (3, 4))]


def test_two_ranks_of_a_host_that_are_near_each_other_share_something_that_has_no_name() -> None:
    logs, hosts = healthy(16, 0.03, 12, 2, 5.0)
    mine = np.isin(np.arange(16), (4, 5))
    logs[mine[:, None] != mine[None, :]] += np.log(2)
    answer = judge_matrix(latencies(logs, hosts))
    assert (answer.outcome, named(answer)) == ("inconclusive", [])


@pytest.mark.parametrize("paths", [[(0, 1), (0, 5)], [(0, 1), (2, 9), (4, 12)]])
def test_slow_paths_that_share_a_rank_or_are_many_are_a_pattern(paths: list[tuple[int, int]]) -> None:
    logs, _ = healthy(16, 0.03, 13)
    for a, b in paths:
        logs = slow_path(logs, a, b, 2.5)
    answer = judge_matrix(latencies(logs))
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"unexplained_pattern"})


@given(st.integers(0, 15), SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_slow_gpu_among_switches_in_sockets_drags_no_path_along(rank: int, seed: int) -> None:
    logs, _ = healthy(16, 0.03, seed)
    for size, step in ((2, 1.6), (4, 1.8)):
        block = np.arange(16) // size
        logs += np.where(block[:, None] == block[None, :], 0.0, np.log(step))
    assert named(judge_matrix(latencies(slow_gpu(logs, rank)))) == [("gpu", (rank,))]
