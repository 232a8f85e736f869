"""Ports that no rail uses: did something move there?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.selection.counters import DIRECTIONS, SIDES, Movement, Side
from app.selection.rails import Rail
from app.selection.results import Result


@dataclass(frozen=True)
class OtherPort:
    """A device that a snapshot names and no rail uses. ``moved_bytes`` counts the busier direction."""

    side: Side
    device: str
    moved_bytes: int | None
    result: Result
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As a document."""
        return dict(vars(self))


def other_ports(movement: Movement, rails: Iterable[Rail], allowed: int) -> tuple[OtherPort, ...]:
    """Judge them all.

    Parameters
    ----------
    movement : Movement
        Counters of both sides.
    rails : iterable of Rail
        Whose devices are left out.
    allowed : int
        Bytes that may move unnoticed.
    """
    used = list(rails)
    mine: dict[Side, set[str]] = {
        "source": {rail.local for rail in used},
        "target": {remote for rail in used for remote in rail.remotes},
    }
    return tuple(
        _judged(movement, side, device, allowed)
        for side in SIDES
        for device in sorted(movement.devices(side) - mine[side])
    )


def _judged(movement: Movement, side: Side, device: str, allowed: int) -> OtherPort:
    each = [movement.moved(side, device, way) for way in DIRECTIONS]
    known = [one.wire_bytes for one in each if one.wire_bytes is not None]
    most = max(known, default=None)
    if most is not None and most > allowed:
        return OtherPort(side, device, most, "fail", f"moved {most} bytes, more than {allowed}; no rail uses it")
    trouble = next((one.trouble for one in each if one.trouble), None)
    if trouble:
        return OtherPort(side, device, most, "inconclusive", f"counter {trouble}: whether it moved is not known")
    return OtherPort(side, device, most, "pass", f"moved {most} bytes, at most {allowed}")
