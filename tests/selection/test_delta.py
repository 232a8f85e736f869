"""The delta of two snapshots."""

from __future__ import annotations

import pytest

from app.selection.delta import SCALARS, delta
from tests.selection.support import device, snapshot


def test_scalars_and_devices_subtract() -> None:
    start = snapshot(device(0, 100, 2), device(1, 50, 1), allocations=10, single=4, probes=1)
    end = snapshot(device(1, 80, 4), device(0, 100, 2), allocations=17, single=6, probes=2)
    found = delta(start, end)
    assert found.whole
    assert [getattr(found.selection, name) for name in SCALARS] == [7, 2, 5, 1]
    assert [(d.dev_id, d.selected_slices, d.selected_bytes) for d in found.selection.devices] == [
        (0, 0, 0),
        (1, 3, 30),
    ]


def test_availability_name_and_numa_node_are_the_ends() -> None:
    start = snapshot(device(0, 5))
    end = snapshot(device(0, 9, available=False, device_name="renamed", numa_node=3))
    (found,) = delta(start, end).selection.devices
    assert (found.available, found.device_name, found.numa_node, found.selected_bytes) == (False, "renamed", 3, 4)


def test_rail_only_in_the_end_belongs_to_the_window() -> None:
    found = delta(snapshot(device(0, 5)), snapshot(device(0, 6), device(7, 9)))
    assert [(d.dev_id, d.selected_bytes) for d in found.selection.devices] == [(0, 1), (7, 9)]
    assert found.only_in_end == (7,)
    assert found.whole


def test_rail_only_in_the_start_is_named_and_the_window_is_not_whole() -> None:
    found = delta(snapshot(device(0, 5), device(7, 9)), snapshot(device(0, 6)))
    assert [d.dev_id for d in found.selection.devices] == [0]
    assert found.only_in_start == (7,)
    assert not found.whole


@pytest.mark.parametrize("name", ["selected_bytes", "selected_slices"])
def test_counter_going_backwards_is_a_reset_not_a_zero(name: str) -> None:
    found = delta(snapshot(device(3, **{name: 50})), snapshot(device(3, **{name: 49})))
    assert found.resets == (f"devices.3.{name}",)
    assert not found.whole


def test_scalar_going_backwards_is_a_reset() -> None:
    assert delta(snapshot(allocations=10), snapshot(allocations=9)).resets == (
        "allocations",
        "multi_path_allocations",
    )


def test_no_rails() -> None:
    found = delta(snapshot(), snapshot())
    assert found.whole
    assert found.selection.devices == []
