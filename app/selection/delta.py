"""What happened between two snapshots of one selector."""

from __future__ import annotations

from dataclasses import dataclass

from app.selection.record import DeviceSelection, Selection

SCALARS = ("allocations", "single_path_allocations", "multi_path_allocations", "probe_allocations")
COUNTERS = ("selected_slices", "selected_bytes")


@dataclass(frozen=True)
class Delta:
    """A window's counters, and what makes them doubtful.

    Parameters
    ----------
    selection : Selection
        End minus start. Devices are those of the end snapshot, sorted by ``dev_id``; a counter that went backwards
        stands as 0 here and is named in ``resets``.
    resets : tuple of str
        Counters that went backwards, for example ``devices.3.selected_bytes`` (3 is a ``dev_id``).
    only_in_start : tuple of int
        ``dev_id`` of rails that the end snapshot lacks: what they carried is not known.
    only_in_end : tuple of int
        ``dev_id`` of rails that are new: all that they counted belongs to the window.
    """

    selection: Selection
    resets: tuple[str, ...] = ()
    only_in_start: tuple[int, ...] = ()
    only_in_end: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the window's counters are all known."""
        return not self.resets and not self.only_in_start


def delta(start: Selection, end: Selection) -> Delta:
    """Subtract snapshots; devices match by ``dev_id``, their availability, name and NUMA node are the end's."""
    resets: list[str] = []

    def gained(name: str, before: int, after: int) -> int:
        if after < before:
            resets.append(name)
            return 0
        return after - before

    old = {device.dev_id: device for device in start.devices}
    scalars = {name: gained(name, getattr(start, name), getattr(end, name)) for name in SCALARS}
    devices = []
    for device in sorted(end.devices, key=lambda one: one.dev_id):
        before = old.get(device.dev_id)
        counted = {
            name: gained(
                f"devices.{device.dev_id}.{name}", getattr(before, name) if before else 0, getattr(device, name)
            )
            for name in COUNTERS
        }
        devices.append(DeviceSelection(**{**device.model_dump(), **counted}))
    ids = {device.dev_id for device in end.devices}
    return Delta(
        Selection(**scalars, devices=devices),
        tuple(resets),
        only_in_start=tuple(sorted(old.keys() - ids)),
        only_in_end=tuple(sorted(ids - old.keys())),
    )
