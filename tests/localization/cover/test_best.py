"""The best cover known: every pair, never more than the greedy, first class first, hosts, one computation."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.localization.cover import (
    Cover,
    CoverError,
    best,
    best_cover,
    greedy_cover,
    schonheim_bound,
    verify_cover,
)
from app.localization.errors import SettingsError


def covers_all_pairs(n: int, cover: Cover) -> bool:
    """On its own, not by ``verify_cover``."""
    pairs = {(a, b) for probe in cover for i, a in enumerate(probe) for b in probe[i + 1 :]}
    return len(pairs) == n * (n - 1) // 2


def touched(cover: Cover, first: int) -> set[int]:
    return {rank for probe in cover[:first] for rank in probe}


@given(n=st.integers(2, 70), k=st.integers(2, 16))
@example(n=2, k=2)
@example(n=2, k=4)
@example(n=3, k=2)
@example(n=3, k=3)
@example(n=8, k=16)
@example(n=66, k=8)
@example(n=60, k=11)  # only the greedy is that good
@settings(max_examples=30, deadline=None)
def test_covers_every_pair_and_is_never_more_than_the_greedy(n: int, k: int) -> None:
    found = best_cover(n, k)
    assert covers_all_pairs(n, found.probes)
    assert all(list(p) == sorted(set(p)) and len(p) == min(n, k) and p[-1] < n for p in found.probes)
    assert schonheim_bound(n, k) == found.lower_bound <= len(found.probes) <= len(greedy_cover(n, k))
    assert found.greedy_probes == len(greedy_cover(n, k))


@given(n=st.integers(2, 70), k=st.integers(2, 16))
@settings(max_examples=30, deadline=None)
def test_the_first_class_touches_every_gpu(n: int, k: int) -> None:
    found = best_cover(n, k)
    least = -(-n // k)
    assert least <= found.first_class <= least + max(1, least // 10)
    assert touched(found.probes, found.first_class) == set(range(n))
    assert touched(found.probes, found.first_class - 1) != set(range(n))


@given(n=st.integers(2, 60), k=st.integers(2, 12), hosts=st.integers(1, 6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_with_any_hosts_it_is_a_cover_of_the_same_size(n: int, k: int, hosts: int, data: st.DataObject) -> None:
    of_rank = data.draw(st.lists(st.integers(0, hosts - 1), min_size=n, max_size=n))
    found = best_cover(n, k, of_rank)
    assert covers_all_pairs(n, found.probes)
    assert len(found.probes) <= min(len(best_cover(n, k).probes), len(greedy_cover(n, k, of_rank)))
    assert touched(found.probes, found.first_class) == set(range(n))


@pytest.mark.parametrize(
    ("n", "k", "probes"),
    [(300, 4, 7500), (300, 8, 1641), (64, 8, 72), (57, 8, 57), (256, 8, 1184), (128, 8, 304), (325, 4, 8775)],
)
def test_named_figures(n: int, k: int, probes: int) -> None:
    found = best_cover(n, k)
    assert len(found.probes) <= probes
    assert found.first_class <= -(-n // k) + 1


LIMITS = [(4, 1.001, 1.03), (8, 1.06, 1.22)]  # k, mean and largest ratio to the Schonheim bound


def ratios(covers: list[best.BestCover]) -> list[float]:
    return [len(cover.probes) / cover.lower_bound for cover in covers]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "mean", "most"), LIMITS)
def test_ratio_to_the_bound_in_a_sample(k: int, mean: float, most: float) -> None:
    sample = ratios([best_cover(n, k) for n in range(25, 326, 12)])
    assert max(sample) <= most
    assert sum(sample) / len(sample) <= mean + 0.002  # a sample; the whole range is the slow test


@pytest.mark.slow
@pytest.mark.parametrize(("k", "mean", "most"), LIMITS)
def test_the_whole_range(k: int, mean: float, most: float) -> None:
    covers = [best_cover(n, k) for n in range(25, 326)]
    assert max(ratios(covers)) <= most
    assert sum(ratios(covers)) / len(covers) <= mean
    sizes = [len(cover.probes) for cover in covers]
    assert sizes == sorted(sizes)  # a cover of more GPUs is one of fewer
    extra = [cover.first_class + -cover.n // k for cover in covers]
    assert max(extra) <= 2
    assert extra.count(0) >= 0.9 * len(extra)


@pytest.mark.slow
@pytest.mark.parametrize("k", range(2, 17))
def test_never_more_than_the_greedy_for_many_sizes(k: int) -> None:
    for n in (*range(17, 130, 9), 257, 325):
        assert len(best_cover(n, k).probes) <= len(greedy_cover(n, k))


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4, 8, 13, 16])
def test_the_largest_replica(k: int) -> None:
    found = best_cover(1024, k)
    assert len(found.probes) <= len(greedy_cover(1024, k))
    assert touched(found.probes, found.first_class) == set(range(1024))


@pytest.mark.parametrize(("n", "k", "size"), [(64, 8, 8), (128, 8, 16), (60, 4, 4), (240, 8, 24), (64, 4, 16)])
def test_the_first_class_lies_inside_hosts(n: int, k: int, size: int) -> None:
    shuffled = np.random.default_rng(1).permutation(n) // size
    found = best_cover(n, k, shuffled.tolist())
    assert found.first_class == n // k
    assert all(len({int(shuffled[rank]) for rank in probe}) == 1 for probe in found.probes[: n // k])


def test_smaller_hosts_are_probed_whole() -> None:
    """Hosts of 4 under probes of 8: each of the first probes is two whole hosts."""
    found = best_cover(64, 8, [rank // 4 for rank in range(64)])
    for probe in found.probes[:8]:
        assert set(Counter(rank // 4 for rank in probe).values()) == {4}


def test_the_probes_after_the_first_class_stand_in_classes_too() -> None:
    found = best_cover(64, 8)
    for i in range(9):
        assert touched(found.probes[8 * i :], 8) == set(range(64))


def test_who_asks_for_the_same_cover_meanwhile_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go, calls = threading.Event(), threading.Event(), []
    compute = best._compute

    def slowly(n: int, k: int, hosts: best.Hosts) -> best.BestCover:
        calls.append((n, k))
        if n == 41:
            entered.set()
            assert go.wait(20)
        return compute(n, k, hosts)

    monkeypatch.setattr(best, "_compute", slowly)
    best._slot.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(best_cover, 41, 8)
        assert entered.wait(20)
        second = pool.submit(best_cover, 41, 8)
        assert best_cover(42, 8).n == 42  # another cover does not wait
        go.set()
        assert first.result(20) is second.result(20)
    assert sorted(calls) == [(41, 8), (42, 8)]


def test_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    best._slot.cache_clear()
    with monkeypatch.context() as broken:
        broken.setattr(best, "_smallest", lambda n, *_: ([list(range(8))], "broken"))
        with pytest.raises(CoverError, match="no probe contains both 0 and 8"):
            best_cover(43, 8)
    assert covers_all_pairs(43, best_cover(43, 8).probes)


@pytest.mark.parametrize(
    ("probes", "wrong"),
    [
        ([(0, 1, 2), (0, 3, 4), (1, 3, 4), (2, 3, 4)], None),
        ([(0, 1, 2), (0, 3, 4), (1, 3, 4)], "no probe contains both 2 and 3"),
        ([(0, 1, 2), (0, 3, 4), (1, 3, 4), (2, 3)], "probe 3 is not 3 different ranks"),
        ([(0, 1, 2), (0, 3, 4), (1, 3, 4), (2, 3, 3)], "probe 3 is not 3 different ranks"),
        ([(0, 1, 2), (0, 3, 4), (1, 3, 4), (2, 3, 5)], "probe 3 is not 3 different ranks below 5"),
        ([(-1, 1, 2), (0, 3, 4), (1, 3, 4), (2, 3, 4)], "probe 0 is not 3 different ranks"),
        ([], "no probe contains both 0 and 1"),
    ],
)
def test_verify_names_what_is_wrong(probes: list[tuple[int, ...]], wrong: str | None) -> None:
    if wrong is None:
        verify_cover(probes, 5, 3)
        return
    with pytest.raises(CoverError, match=wrong):
        verify_cover(probes, 5, 3)


@pytest.mark.parametrize(("n", "k", "field"), [(1, 2, "n"), (1025, 8, "n"), (8, 1, "k"), (8, 17, "k")])
def test_out_of_range_names_the_field(n: int, k: int, field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        best_cover(n, k)
    assert caught.value.field == field


def test_hosts_of_another_size_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 hosts given for 8 GPUs"):
        best_cover(8, 4, [0, 1, 2])
