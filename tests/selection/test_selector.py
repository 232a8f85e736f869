"""The rail selector: what it chooses and what it counts."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from app.selection.errors import NoRailError, SelectorError
from app.selection.record import Selection
from app.selection.selector import Allocation, RailInfo, RailSelector, Slice, Strategy

KIB = 1 << 10


def rails(n: int) -> list[RailInfo]:
    return [RailInfo(i, f"endpoint-{i}", numa_node=i % 2) for i in range(n)]


def selector(n: int = 2, strategy: Strategy = "smart", seed: int = 0) -> RailSelector:
    return RailSelector(rails(n), strategy=strategy, seed=seed)


def scalars(found: Selection) -> tuple[int, int, int, int]:
    return (
        found.allocations,
        found.single_path_allocations,
        found.multi_path_allocations,
        found.probe_allocations,
    )


def used(allocation: Allocation) -> Counter[int]:
    return Counter(one.dev_id for one in allocation.slices)


def release(rail_selector: RailSelector, allocation: Allocation, seconds: float | None = None) -> None:
    for one in allocation.slices:
        rail_selector.release(one, seconds)


def test_single_path_accounting() -> None:
    chooser = selector(2)
    chooser.select(KIB, KIB)
    assert scalars(chooser.snapshot()) == (1, 1, 0, 0)


def test_several_slices_on_one_rail_are_single_path() -> None:
    chooser = selector(1)
    allocation = chooser.select(4 * KIB, KIB)
    assert used(allocation) == {0: 4}
    assert scalars(chooser.snapshot()) == (1, 1, 0, 0)


def test_multi_path_accounting() -> None:
    chooser = selector(2)
    assert used(chooser.select(4 * KIB, KIB)) == {0: 2, 1: 2}
    assert scalars(chooser.snapshot()) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("n_bytes", "slices", "sizes"),
    [
        (3 * KIB + 1, None, [KIB, KIB, KIB, 1]),
        (3 * KIB + 1, 3, [KIB, KIB, KIB + 1]),
        (3 * KIB + 1, 1, [3 * KIB + 1]),
        (1, None, [1]),
    ],
)
def test_folded_tails_are_charged_to_the_last_slice(n_bytes: int, slices: int | None, sizes: list[int]) -> None:
    chooser = selector(2)
    allocation = chooser.select(n_bytes, KIB, slices=slices)
    assert [one.n_bytes for one in allocation.slices] == sizes
    devices = chooser.snapshot().devices
    assert sum(d.selected_bytes for d in devices) == n_bytes
    assert sum(d.selected_slices for d in devices) == len(sizes)
    by_rail = {d.dev_id: d.selected_bytes for d in devices}
    assert by_rail == {i: sum(one.n_bytes for one in allocation.slices if one.dev_id == i) for i in (0, 1)}


def test_history_of_a_rail_that_goes_unavailable_stays() -> None:
    chooser = selector(2)
    chooser.select(2 * KIB, KIB)
    chooser.set_available(0, available=False)
    assert used(chooser.select(2 * KIB, KIB)) == {1: 2}
    gone, left = chooser.snapshot().devices
    assert (gone.available, gone.selected_bytes, gone.selected_slices) == (False, KIB, 1)
    assert (left.available, left.selected_bytes) == (True, 3 * KIB)
    chooser.set_available(0, available=True)
    assert chooser.snapshot().devices[0].selected_bytes == KIB


@pytest.mark.parametrize("sizes", [{"n_bytes": 0}, {"n_bytes": 0, "slices": 0}, {"n_bytes": KIB, "slices": 0}])
def test_empty_allocation_counts_nothing(sizes: dict[str, int]) -> None:
    chooser = selector(2)
    before = chooser.snapshot()
    assert chooser.select(block_size=KIB, **sizes) == Allocation()
    assert chooser.snapshot() == before


def test_failed_allocation_counts_nothing() -> None:
    chooser = selector(2)
    for dev_id in (0, 1):
        chooser.set_available(dev_id, available=False)
    before = chooser.snapshot()
    with pytest.raises(NoRailError):
        chooser.select(KIB, KIB)
    for wrong in ({"n_bytes": -1, "block_size": KIB}, {"n_bytes": 1, "block_size": 0}):
        with pytest.raises(SelectorError):
            chooser.select(**wrong)
    with pytest.raises(SelectorError, match="3 slices of 1024 bytes are more than"):
        chooser.select(KIB, KIB, slices=3)
    assert chooser.snapshot() == before


def test_scheduled_probe_accounting_fresh_thread() -> None:
    chooser = selector(2)
    found = [chooser.select(2 * KIB, KIB).explored for _ in range(100)]
    assert found == [False] * 99 + [True]
    assert scalars(chooser.snapshot()) == (100, 0, 100, 1)

    in_other_thread: list[bool] = []

    def again() -> None:
        in_other_thread.extend(chooser.select(2 * KIB, KIB).explored for _ in range(99))

    thread = threading.Thread(target=again)
    thread.start()
    thread.join()
    assert in_other_thread == [False] * 99
    assert chooser.snapshot().probe_allocations == 1


def test_scheduled_probe_accounting_zero_slice_calls_do_not_advance_it() -> None:
    chooser = selector(2)
    for _ in range(99):
        chooser.select(2 * KIB, KIB)
    for _ in range(5):
        chooser.select(0, KIB)
        chooser.select(KIB, KIB)  # one slice: no multi-slice selection
        with pytest.raises(NoRailError):
            chooser.select(2 * KIB, KIB, among=[7])
    assert chooser.snapshot().probe_allocations == 0
    assert chooser.select(2 * KIB, KIB).explored


def test_scheduled_probe_accounting_one_candidate_is_single_path() -> None:
    chooser = selector(1)
    for _ in range(100):
        chooser.select(2 * KIB, KIB)
    assert scalars(chooser.snapshot()) == (100, 100, 0, 1)


def test_baseline_goes_round_and_never_explores() -> None:
    chooser = selector(3, "baseline")
    order = [one.dev_id for _ in range(100) for one in chooser.select(2 * KIB, KIB).slices]
    assert order == [i % 3 for i in range(200)]
    assert chooser.snapshot().probe_allocations == 0


def test_exploration_reaches_rails_that_are_thought_slow() -> None:
    chooser = selector(2)
    for _ in range(99):
        for one in chooser.select(2 * KIB, KIB).slices:
            chooser.release(one, 1.0 if one.dev_id else 0.001)
    assert used(chooser.select(2 * KIB, KIB)) == {0: 1, 1: 1}


def test_smart_prefers_the_least_bytes_in_flight_over_learnt_speed() -> None:
    chooser = selector(2)
    release(chooser, chooser.select(2 * KIB, KIB), 1.0)
    fast = chooser.select(KIB, KIB, among=[1])
    chooser.release(fast.slices[0], 0.1)
    # Rail 1 has shown 1 and 10 KiB/s, which is 2.8 learnt; rail 0 has 1.
    assert used(chooser.select(4 * KIB, KIB)) == {0: 1, 1: 3}


def test_bytes_that_have_come_back_are_not_in_flight() -> None:
    chooser = selector(2)
    busy = chooser.select(8 * KIB, KIB, among=[0])
    assert used(chooser.select(4 * KIB, KIB)) == {1: 4}
    release(chooser, busy)
    assert used(chooser.select(4 * KIB, KIB)) == {0: 4}


def test_only_rails_that_reach_the_sender_are_chosen() -> None:
    chooser = selector(4)
    for _ in range(200):
        assert used(chooser.select(4 * KIB, KIB, among=[1, 3])).keys() <= {1, 3}
    idle = [d.selected_bytes for d in chooser.snapshot().devices if d.dev_id in {0, 2}]
    assert idle == [0, 0]


@pytest.mark.parametrize("strategy", ["smart", "baseline"])
def test_reading_snapshots_changes_no_choice(strategy: Strategy) -> None:
    def choices(read: bool) -> list[Allocation]:
        chooser = selector(4, strategy, seed=3)
        found = []
        for i in range(300):
            if read:
                chooser.snapshot()
            found.append(chooser.select((i % 5 + 1) * KIB, KIB))
            release(chooser, found[-1], 0.001 * (i % 7))
        return found

    assert choices(read=True) == choices(read=False)


def test_seed_decides_where_it_begins() -> None:
    assert [used(selector(3, seed=s).select(KIB, KIB)) for s in range(3)] == [{0: 1}, {1: 1}, {2: 1}]


def test_no_rails_snapshot_is_zeros_and_an_empty_list() -> None:
    found = RailSelector([]).snapshot()
    assert (scalars(found), found.devices) == ((0, 0, 0, 0), [])


def test_snapshot_replaces_and_does_not_merge() -> None:
    chooser = selector(2)
    chooser.select(2 * KIB, KIB)
    old = chooser.snapshot()
    chooser.replace_rails([RailInfo(9, "endpoint-9")])
    new = chooser.snapshot()
    assert [d.dev_id for d in new.devices] == [9]
    assert scalars(new) == (0, 0, 0, 0)
    assert [(d.dev_id, d.selected_bytes) for d in old.devices] == [(0, KIB), (1, KIB)]


def test_a_slice_of_an_older_topology_is_not_taken_back_from_the_new_one() -> None:
    chooser = selector(2)
    old = chooser.select(8 * KIB, KIB, among=[0])
    chooser.replace_rails(rails(2))
    chooser.select(8 * KIB, KIB, among=[0])
    release(chooser, old, 1e-9)
    assert used(chooser.select(4 * KIB, KIB)) == {1: 4}
    chooser.release(Slice(77, KIB, chooser.topology))


def test_a_rail_twice_is_refused() -> None:
    with pytest.raises(SelectorError, match="stands twice"):
        RailSelector([RailInfo(0, "a"), RailInfo(0, "b")])
    with pytest.raises(SelectorError, match="no rail 7"):
        selector(2).set_available(7, available=True)


def test_concurrent_snapshots_stay_readable_and_scalars_monotone() -> None:
    chooser = selector(3)
    stop = threading.Event()
    seen: list[Selection] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(chooser.snapshot())

    def work() -> None:
        for i in range(1000):
            release(chooser, chooser.select((i % 3 + 1) * KIB, KIB), 0.001)

    reader = threading.Thread(target=read)
    workers = [threading.Thread(target=work) for _ in range(3)]
    reader.start()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stop.set()
    reader.join()
    end = chooser.snapshot()
    assert len(seen) > 1
    for before, after in zip(seen, [*seen[1:], end], strict=True):
        assert all(a <= b for a, b in zip(scalars(before), scalars(after), strict=True))
        assert [d.dev_id for d in after.devices] == [0, 1, 2]
        assert before.selected_bytes <= after.selected_bytes
    assert end.allocations == 3000 == end.single_path_allocations + end.multi_path_allocations
    assert end.selected_bytes == 3 * sum(i % 3 + 1 for i in range(1000)) * KIB
    # Each thread has 667 selections of two or three slices: 6 explorations.
    assert end.probe_allocations == 3 * 6
