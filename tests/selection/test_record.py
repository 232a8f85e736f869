"""Selection records: the schema, what is refused and where, and files of many."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.selection.errors import RecordError, UnknownVersionError
from app.selection.record import dump_record, read_records
from tests.selection.support import MIB, device, lines, record, selection, target


def test_one_record_comes_back_as_it_went_in() -> None:
    wanted = record({0: MIB, 1: 0})
    read = read_records(lines(wanted))
    assert json.loads(dump_record(read.pairs[0].record)) == wanted
    assert read.pairs[0].target is None


def test_the_order_of_keys_does_not_matter_and_unknown_ones_are_left_alone() -> None:
    turned = dict(reversed(record({0: MIB}, later_addition={"x": 1}).items()))
    assert read_records(json.dumps(turned)).pairs[0].record.selection.selected_bytes == MIB


def test_devices_are_written_sorted() -> None:
    read = read_records(lines(record({3: 1, 0: 2})))
    written = json.loads(dump_record(read.pairs[0].record))
    assert [d["dev_id"] for d in written["selection"]["devices"]] == [0, 3]


def test_target_records_stand_beside_their_windows_in_either_order() -> None:
    small, large = {"block_size": 1}, {"block_size": 2}
    read = read_records(
        lines(target(7, **large), record({0: 5}, **small), target(5, **small), record({0: 7}, **large))
    )
    assert [(p.line, p.target and p.target.aggregate_transferred_bytes) for p in read.pairs] == [(2, 5), (4, 7)]
    assert read.alone == ()


def test_a_target_record_without_a_window_is_kept_apart() -> None:
    read = read_records(lines(record({0: 5}), target(5), target(6)))
    assert [(line, t.aggregate_transferred_bytes) for line, t in read.alone] == [(3, 6)]


def test_op_type_may_differ_within_a_pair() -> None:
    (pair,) = read_records(lines(record({0: 5}, op_type="write"), target(5, op_type="mix"))).pairs
    assert pair.target is not None
    assert (pair.record.op_type, pair.target.op_type) == ("write", "mix")


def _with(**changes: Any) -> str:
    return lines(record({0: 1}), {**record({0: 1}), **changes}, record({0: 1}))


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        (lines(record({0: 1})) + '{"schema_version": 1,\n' + lines(record({0: 1})), 2, "", "not JSON"),
        (_with(selection=selection(device(0, selected_bytes=-1))), 2, "selection.devices.0.selected_bytes", "0"),
        (
            _with(selection=selection(device(0, selected_bytes=2**64))),
            2,
            "selection.devices.0.selected_bytes",
            "less than",
        ),
        (
            _with(selection=selection(device(0, selected_bytes=1.0))),
            2,
            "selection.devices.0.selected_bytes",
            "int",
        ),
        (_with(selection=selection(device(0, available=1))), 2, "selection.devices.0.available", "boolean"),
        (
            _with(selection=selection(device(0), device(1), device(0))),
            2,
            "selection.devices.2.dev_id",
            "dev_id 0 stands twice",
        ),
        (
            _with(selection=selection(device(0), device(3), device(7, device_name="mlx5_3"))),
            2,
            "selection.devices.2.device_name",
            "mlx5_3 is dev_id 3 and dev_id 7",
        ),
        (
            _with(selection=selection(device(0), device(1, MIB, slices=0))),
            2,
            "selection.devices.1.selected_slices",
            f"0 slices have {MIB} bytes",
        ),
        (
            _with(selection={**selection(device(0)), "multi_path_allocations": 7}),
            2,
            "selection.allocations",
            "4 single-path and 7 multi-path allocations are more than the 10",
        ),
        (_with(selection=selection(device(0), probes=11)), 2, "selection.probe_allocations", "11 are more than"),
        (
            _with(selection=selection(device(0, device_name="a\0"))),
            2,
            "selection.devices.0.device_name",
            "printable",
        ),
        (_with(block_size="1M"), 2, "block_size", "integer"),
        (_with(measurement_window="cumulative"), 2, "measurement_window", "snapshot_delta"),
        (_with(record_type="qos_metrics"), 2, "record_type", "rdma_selection_metrics"),
        (_with(schema_version=True), 2, "schema_version", "whole number"),
        (_with(schema_version="1"), 2, "schema_version", "whole number"),
        ("[1]\n", 1, "", "one JSON object a line"),
        ('\n\n{"schema_version": 1, "schema_version": 1}', 3, "", "stands twice"),
        ('{"schema_version": NaN}', 1, "", "NaN is no number"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", 1, "", "recursion|nested"),
        (lines(target(5, aggregate_operations=None)), 1, "aggregate_operations", "integer"),
    ],
)
def test_refused_naming_line_and_field(text: str, line: int, field: str, words: str) -> None:
    with pytest.raises(RecordError, match=words) as refused:
        read_records(text)
    assert (refused.value.line, refused.value.field) == (line, field)
    assert f"line {line}" in str(refused.value)


def test_what_a_selector_may_have_counted_is_taken() -> None:
    """Counts of paths that lag, slices without bytes, nothing at all, other names than in another record."""
    lagging = {**selection(device(0, 0, slices=3), probes=10), "multi_path_allocations": 5}
    nothing = selection(device(0), device(1, available=False), allocations=0, single=0)
    turned = selection(device(0, MIB, device_name="mlx5_1"), device(1, MIB, device_name="mlx5_0"))
    text = lines(*(record({}, selection=one) for one in (lagging, nothing, turned, selection(device(0, MIB)))))
    assert len(read_records(text).pairs) == 4


def test_missing_field() -> None:
    broken = record({0: 1})
    del broken["selection"]["devices"][0]["numa_node"]
    with pytest.raises(RecordError) as refused:
        read_records(lines(broken))
    assert refused.value.field == "selection.devices.0.numa_node"


@pytest.mark.parametrize("version", [0, 2, 17])
def test_an_unknown_schema_version_is_an_error_of_its_own(version: int) -> None:
    with pytest.raises(UnknownVersionError, match=f"{version} is not known here") as refused:
        read_records(lines(record({0: 1}), {"schema_version": version, "anything": "else"}))
    assert refused.value.line == 2


@pytest.mark.parametrize("text", ["", "\n \n", lines(target(5))])
def test_a_file_without_a_selection_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="no record"):
        read_records(text)
