"""Algorithm 1: every GPU and path is covered, by no more probes than the paper's."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.cover import Cover, greedy_cover, schonheim_bound, survive, vertex_cover
from app.localization.cover.greedy import smaller_greedy_cover
from app.localization.errors import SettingsError


def covers_all_pairs(n: int, cover: Cover) -> bool:
    seen = np.eye(n, dtype=bool)
    for probe in cover:
        seen[np.ix_(probe, probe)] = True
    return bool(seen.all())


@given(n=st.integers(2, 40), k=st.integers(2, 16))
@settings(max_examples=80, deadline=None)
def test_every_pair_is_covered_by_probes_of_k(n: int, k: int) -> None:
    cover = greedy_cover(n, k)
    assert covers_all_pairs(n, cover)
    assert all(list(p) == sorted(set(p)) and len(p) == min(n, k) for p in cover)
    assert len(cover) >= schonheim_bound(n, k)


@given(n=st.integers(4, 40), k=st.integers(3, 8), hosts=st.integers(2, 6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_with_hosts_every_probe_spans_two(n: int, k: int, hosts: int, data: st.DataObject) -> None:
    of_rank = data.draw(st.lists(st.integers(0, hosts - 1), min_size=n, max_size=n))
    cover = greedy_cover(n, k, of_rank)
    assert covers_all_pairs(n, cover)
    if len(set(of_rank)) > 1:
        assert all(len({of_rank[r] for r in probe}) > 1 for probe in cover)


@pytest.mark.parametrize(
    ("n", "k", "probes"),
    [(8, 4, 6), (64, 8, 88), (300, 8, 1951), (300, 4, 8010), (7, 8, 1), (8, 8, 1), (9, 8, 5), (6, 2, 15)],
)
def test_known_sizes(n: int, k: int, probes: int) -> None:
    # 6 is the paper's example, 1951 its n = 300 (DESIGN section 5); n = 300, k = 4 is an upper limit.
    found = len(greedy_cover(n, k))
    assert found <= probes if (n, k) in {(300, 4), (9, 8)} else found == probes


@pytest.mark.parametrize(("n", "k", "bound"), [(8, 4, 6), (300, 8, 1613), (300, 4, 7500), (64, 8, 72), (7, 3, 7)])
def test_schonheim_bound(n: int, k: int, bound: int) -> None:
    assert schonheim_bound(n, k) == bound


@given(n=st.integers(2, 60), k=st.integers(2, 16))
def test_vertex_cover_holds_every_gpu_in_probes_of_one_size(n: int, k: int) -> None:
    cover = vertex_cover(n, k)
    assert {rank for probe in cover for rank in probe} == set(range(n))
    assert {len(probe) for probe in cover} == {min(n, k)}
    assert len(cover) == -(-n // min(n, k))


@given(n=st.integers(4, 12), k=st.integers(2, 6), faults=st.integers(1, 2))
def test_no_few_gpus_sit_in_every_probe(n: int, k: int, faults: int) -> None:
    cover = survive(greedy_cover(n, k), n, k, faults)
    for group in combinations(range(n), faults) if n - faults >= k else ():
        assert any(set(group).isdisjoint(probe) for probe in cover)


def test_is_cached() -> None:
    assert greedy_cover(50, 8) is greedy_cover(50, 8)


@pytest.mark.parametrize(("n", "k", "field"), [(1, 2, "n"), (1025, 8, "n"), (8, 1, "k"), (8, 17, "k")])
def test_out_of_range_names_the_field(n: int, k: int, field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        greedy_cover(n, k)
    assert caught.value.field == field


def test_hosts_of_another_size_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 hosts given for 8 GPUs"):
        greedy_cover(8, 4, [0, 1, 2])


@pytest.mark.parametrize(("n", "k"), [(64, 4), (60, 3), (100, 8), (9, 8), (30, 16)])
def test_giving_up_never_loses_a_smaller_cover(n: int, k: int) -> None:
    whole = greedy_cover(n, k)
    assert smaller_greedy_cover(n, k, None, fewer_than=len(whole) + 1) == whole
    assert smaller_greedy_cover(n, k, None, fewer_than=len(whole)) is None
