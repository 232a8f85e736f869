"""Snapshots of NIC port counters, and what moved between two of them.

Two hosts have a say: the *source* initiates transfers (the rail file's ``local``), the *target* serves them
(``remote``). ``docs/selection.md`` shows the accepted forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from app.selection.errors import CountersError, UnitError

Side = Literal["source", "target"]
Direction = Literal["transmit", "receive"]
Unit = Literal["words4", "bytes"]
Trouble = Literal["missing", "reset", "saturated"]

SIDES: tuple[Side, ...] = get_args(Side)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
BYTES_PER_UNIT: Mapping[Unit, int] = {"words4": 4, "bytes": 1}
SATURATED_32 = 0xFFFFFFFF
SATURATED_64 = 2**64 - 1

Port = tuple[Side, str, str]
"""Side, device, port number as text."""


@dataclass(frozen=True)
class Snapshot:
    """Raw counters at one time.

    Parameters
    ----------
    ports : mapping of Port to mapping of Direction to int or None
        Every port that the snapshot names; None where it gives no value, which is not zero.
    taken_at : float, optional
        Seconds since 1970, where the snapshot says it.
    unit : Unit, optional
        Of its counts, where the snapshot says it.
    """

    ports: Mapping[Port, Mapping[Direction, int | None]]
    taken_at: float | None = None
    unit: Unit | None = None

    def devices(self, side: Side) -> frozenset[str]:
        """Devices that it names on one side."""
        return frozenset(device for where, device, _ in self.ports if where == side)


@dataclass(frozen=True)
class Moved:
    """Bytes that a device moved in one direction, or why that is not known."""

    wire_bytes: int | None
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Movement:
    """Two snapshots of the same ports, and what lies between them.

    Parameters
    ----------
    before, after : Snapshot
        Around the run.
    unit : Unit
        What one count is: InfiniBand's ``port_xmit_data`` counts words of 4 bytes, some exporters publish bytes.

    Raises
    ------
    UnitError
        When a snapshot says another unit; its field begins with ``before`` or ``after``.
    """

    before: Snapshot
    after: Snapshot
    unit: Unit

    def __post_init__(self) -> None:
        for name, snapshot in (("before", self.before), ("after", self.after)):
            if snapshot.unit not in {None, self.unit}:
                message = f"{self.unit} was stated, a snapshot says {snapshot.unit}"
                raise UnitError(message, field=f"{name}.unit")

    def devices(self, side: Side) -> frozenset[str]:
        """Devices that either snapshot names."""
        return self.before.devices(side) | self.after.devices(side)

    def moved(self, side: Side, device: str, direction: Direction) -> Moved:
        """Bytes over all ports of a device; one port that is not known makes the device not known."""
        each = [self._port(port, direction) for port in self._ports.get((side, device), ())]
        return _summed(each) if each else Moved(None, "missing")

    def wire(self, side: Side, devices: Iterable[str], ways: Iterable[Direction]) -> Moved:
        """Bytes of some devices in some directions, or the first reason why that is not known."""
        directions = tuple(ways)
        return _summed([self.moved(side, device, way) for device in devices for way in directions])

    @cached_property
    def _ports(self) -> dict[tuple[Side, str], list[Port]]:
        found: dict[tuple[Side, str], list[Port]] = {}
        for port in sorted({*self.before.ports, *self.after.ports}):
            found.setdefault(port[:2], []).append(port)
        return found

    def _port(self, port: Port, direction: Direction) -> Moved:
        first = self.before.ports.get(port, {}).get(direction)
        last = self.after.ports.get(port, {}).get(direction)
        if first is None or last is None:
            return Moved(None, "missing")
        if last in self._ceilings():
            return Moved(None, "saturated")
        if last < first:
            return Moved(None, "reset")
        return Moved((last - first) * BYTES_PER_UNIT[self.unit])

    def _ceilings(self) -> set[int]:
        # An exporter that publishes bytes has multiplied a 32-bit counter of words that stands still.
        return {SATURATED_32, SATURATED_64, 4 * SATURATED_32 if self.unit == "bytes" else SATURATED_32}


def _summed(each: Sequence[Moved]) -> Moved:
    troubled = next((one for one in each if one.trouble), None)
    return troubled or Moved(sum(one.wire_bytes or 0 for one in each))


def check_unit(unit: str) -> Unit:
    """The unit as stated.

    Raises
    ------
    CountersError
        When it is neither ``words4`` nor ``bytes``: it cannot be seen from the numbers.
    """
    for known in BYTES_PER_UNIT:
        if unit == known:
            return known
    raise CountersError(f"must be {' or '.join(BYTES_PER_UNIT)}, not {unit!r}", field="unit")
