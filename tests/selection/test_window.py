"""A measured phase and its record."""

from __future__ import annotations

import json
import threading

import pytest

from app.selection.errors import WindowError
from app.selection.record import Selection, SelectionRecord, dump_record, read_records
from app.selection.selector import Allocation, RailInfo, RailSelector
from app.selection.window import MeasurementWindow, Workload

KIB = 1 << 10
WORKLOAD = Workload(block_size=KIB, batch_size=4, num_threads=2)


def selector() -> RailSelector:
    return RailSelector([RailInfo(0, "a"), RailInfo(1, "b"), RailInfo(2, "c")])


def test_warmup_is_excluded_and_the_record_reads_back() -> None:
    chooser = selector()
    emitted: list[SelectionRecord] = []
    window = MeasurementWindow(chooser, workers=2, emit=emitted.append)

    def work() -> None:
        for _ in range(5):
            chooser.select(2 * KIB, KIB)
        assert window.arrive(10)
        for _ in range(3):
            chooser.select(2 * KIB + 1, KIB)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = window.finish(WORKLOAD)
    assert emitted == [record]
    assert (record.selection.allocations, record.selection.selected_bytes) == (6, 6 * (2 * KIB + 1))
    document = json.loads(dump_record(record))
    assert (
        document.items()
        >= {
            "schema_version": 1,
            "record_type": "rdma_selection_metrics",
            "measurement_window": "snapshot_delta",
            "backend": "faultsense",
            "op_type": "probe",
            "block_size": KIB,
            "batch_size": 4,
            "num_threads": 2,
        }.items()
    )
    assert read_records(dump_record(record)).pairs[0].record == record


def test_emission_is_off_by_default_and_changes_nothing() -> None:
    def run(emit: bool, with_window: bool) -> tuple[list[Allocation], Selection, list[SelectionRecord]]:
        chooser, emitted = selector(), []
        found: list[Allocation] = []
        if with_window:
            window = MeasurementWindow(chooser, 1, emitted.append if emit else None)
            assert window.arrive()
        found.extend(chooser.select((i % 4 + 1) * KIB, KIB) for i in range(250))
        if with_window:
            window.finish(WORKLOAD)
        return found, chooser.snapshot(), emitted

    bare, quiet, loud = run(False, False), run(False, True), run(True, True)
    assert bare[:2] == quiet[:2] == loud[:2]
    assert (bare[2], quiet[2], len(loud[2])) == ([], [], 1)


def _refused(window: MeasurementWindow, words: str) -> None:
    with pytest.raises(WindowError, match=words):
        window.finish(WORKLOAD)


def test_a_failed_window_emits_nothing_and_says_why() -> None:
    emitted: list[SelectionRecord] = []
    window = MeasurementWindow(selector(), 1, emitted.append)
    assert window.arrive()
    window.barrier.fail("probe 3 timed out")
    _refused(window, "probe 3 timed out")
    assert emitted == []


def test_a_window_that_never_began_has_no_record() -> None:
    _refused(MeasurementWindow(selector(), 2), "not begun")


def test_topology_replaced_in_the_middle_of_a_window_ends_it() -> None:
    chooser = selector()
    emitted: list[SelectionRecord] = []
    window = MeasurementWindow(chooser, 1, emitted.append)
    assert window.arrive()
    chooser.replace_rails([RailInfo(0, "a"), RailInfo(1, "b"), RailInfo(2, "c")])
    chooser.select(KIB, KIB)
    _refused(window, "topology was replaced")
    assert emitted == []


class _Broken(RailSelector):
    """Its snapshots come from a list."""

    def __init__(self, *snapshots: Selection | Exception) -> None:
        super().__init__([])
        self._given = list(snapshots)

    def snapshot(self) -> Selection:
        given = self._given.pop(0)
        if isinstance(given, Exception):
            raise given
        return given


def test_counter_going_backwards_has_no_record() -> None:
    chooser = selector()
    empty = chooser.snapshot()
    chooser.select(KIB, KIB)
    window = MeasurementWindow(_Broken(chooser.snapshot(), empty), 1)
    assert window.arrive()
    _refused(window, "reset or lost in the window: allocations, .*devices.0.selected_bytes")


def test_start_snapshot_failure_has_no_record() -> None:
    window = MeasurementWindow(_Broken(OSError("no counters")), 1)
    assert not window.arrive()
    _refused(window, "start snapshot: no counters")


def test_end_snapshot_failure_has_no_record() -> None:
    emitted: list[SelectionRecord] = []
    window = MeasurementWindow(_Broken(selector().snapshot(), OSError("no counters")), 1, emitted.append)
    assert window.arrive()
    _refused(window, "end snapshot: no counters")
    assert (emitted, window.barrier.failure) == ([], "end snapshot: no counters")
