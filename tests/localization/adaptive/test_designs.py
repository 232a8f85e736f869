"""Rings, shifts and matchings: together they are every path, and each probe is what it should be."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.localization.adaptive.designs import matchings, mixed_ring, parts, shift_groups
from app.localization.shapes import Shift

sizes = st.integers(2, 40)


@given(size=sizes, r=st.integers(1, 6), hosts=st.integers(1, 8))
def test_the_groups_of_shifts_hold_every_shift_once(size: int, r: int, hosts: int) -> None:
    groups = shift_groups(size, r, hosts)
    assert sorted(shift for group in groups for shift in group) == list(range(1, size // 2 + 1))
    assert all(1 <= len(group) <= r for group in groups)


@given(size=sizes, r=st.integers(1, 4), seed=st.integers(0, 99))
def test_their_probes_send_over_every_path_and_load_all_ranks_alike(size: int, r: int, seed: int) -> None:
    ring = mixed_ring(range(size), None, np.random.default_rng(seed))
    crossed = set()
    for group in shift_groups(size, r):
        edges = Shift((ring,), group).edges
        assert set(np.bincount(edges.sender)) == set(np.bincount(edges.receiver)) == {len(group)}
        crossed |= {frozenset(pair) for pair in zip(edges.sender.tolist(), edges.receiver.tolist(), strict=True)}
    assert crossed == set(map(frozenset, combinations(range(size), 2)))


@given(size=sizes, data=st.data())
def test_the_matchings_of_a_shift_are_its_paths_and_meet_no_rank_twice(size: int, data: st.DataObject) -> None:
    shift = data.draw(st.integers(1, size // 2))
    ring = mixed_ring(range(size), None, np.random.default_rng(0))
    found = matchings(ring, shift)
    for matching in found:
        ranks = [rank for pair in matching for rank in pair]
        assert len(ranks) == len(set(ranks))
    pairs = [pair for matching in found for pair in matching]
    edges = Shift((ring,), (shift,)).edges
    expected = {tuple(sorted(pair)) for pair in zip(edges.sender.tolist(), edges.receiver.tolist(), strict=True)}
    assert sorted(pairs) == sorted(expected)


@given(hosts=st.integers(2, 8), each=st.integers(1, 8), r=st.integers(1, 4), seed=st.integers(0, 99))
def test_with_hosts_of_one_size_every_probe_holds_one_hop_class(hosts: int, each: int, r: int, seed: int) -> None:
    host_of = [rank // each for rank in range(hosts * each)]
    ring = mixed_ring(range(hosts * each), host_of, np.random.default_rng(seed))
    for group in shift_groups(len(ring), r, hosts):
        edges = Shift((ring,), group).edges
        inside = {host_of[u] == host_of[v] for u, v in zip(edges.sender, edges.receiver, strict=True)}
        assert len(inside) == 1


@given(size=sizes, count=st.integers(1, 9), seed=st.integers(0, 99))
def test_parts_are_disjoint_and_everything(size: int, count: int, seed: int) -> None:
    found = parts(range(size), count, np.random.default_rng(seed))
    assert sorted(rank for part in found for rank in part) == list(range(size))
    assert all(found)
    assert len(found) == min(size, count)
