"""Why records and counters may not belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.selection.counters import BYTES_PER_UNIT, Direction, Movement, Side
from app.selection.rails import Rail
from app.selection.record import Records
from app.selection.tolerances import Tolerances
from app.selection.traffic import Flow, differing, without_direction

SHOWN = 5
WORD = BYTES_PER_UNIT["words4"]
UNIT_DOUBTFUL = "unit_doubtful"


@dataclass(frozen=True)
class Reason:
    """A remark on the whole.

    Parameters
    ----------
    code, text : str
        For programs and for people.
    decides : bool
        The whole is inconclusive.
    shakes : bool
        A rail that only its counters accuse is inconclusive.
    """

    code: str
    text: str
    decides: bool = False
    shakes: bool = False

    def to_dict(self) -> dict[str, str]:
        """As a document."""
        return {"code": self.code, "text": self.text}


def doubts(
    records: Records, rails: Sequence[Rail], movement: Movement, known: Sequence[Flow], limits: Tolerances
) -> list[Reason]:
    """All that speaks against comparing the records with the counters, and what is only worth saying."""
    return [
        *_window(rails, movement, known, limits),
        *_transferred(records),
        *_operations(records),
        *_requests(records),
    ]


def _window(rails: Sequence[Rail], movement: Movement, known: Sequence[Flow], limits: Tolerances) -> list[Reason]:
    first, last = movement.before.taken_at, movement.after.taken_at
    if first is not None and last is not None and last <= first:
        text = "the snapshot `after` was not taken after the snapshot `before`: they do not enclose the run"
    elif not any(flow.selected.get(rail.local) for rail in rails for flow in known):
        return []
    elif all(_turned(rails, movement, flow, limits) for flow in known):
        text = (
            "what was selected moved the other way: the records' op_type, or source and target of the"
            " counters, look swapped"
        )
        return [Reason("direction_doubtful", text, decides=True, shakes=True)]
    elif all(_nothing_moved(movement, flow) for flow in known):
        text = (
            "no counter of the operation's direction moved: the snapshots do not enclose the run, or the counters"
            " stand still"
        )
    elif _four_times(rails, movement, known, limits):
        text = (
            f"the rails carried {WORD} times what was selected, at the source as at the target: the counters'"
            " unit is not the stated one, or the snapshots enclose other runs too"
        )
        return [Reason(UNIT_DOUBTFUL, text, decides=True, shakes=True)]
    elif _all_short(rails, movement, known, limits):
        text = (
            "every rail is short, at the source as at the target: the snapshots do not enclose the run, their unit"
            " is not the stated one, or the bytes went another way than these ports"
        )
    else:
        return []
    return [Reason("window_not_enclosing", text, decides=True, shakes=True)]


def _turned(rails: Sequence[Rail], movement: Movement, flow: Flow, limits: Tolerances) -> bool:
    """Too little went the way of the operation at both sides, and enough for it the other way."""
    least = (1 - limits.below) * sum(flow.selected.get(rail.local, 0) for rail in rails)
    ends: tuple[tuple[Side, Sequence[Direction], Sequence[Direction]], ...] = (
        ("source", flow.source, flow.target),
        ("target", flow.target, flow.source),
    )
    for side, way, back in ends:
        devices = movement.devices(side)
        along, against = (movement.wire(side, devices, each).wire_bytes for each in (way, back))
        if along is None or against is None or along >= least or against < least:
            return False
    return True


def _nothing_moved(movement: Movement, flow: Flow) -> bool:
    source = movement.wire("source", movement.devices("source"), flow.source)
    target = movement.wire("target", movement.devices("target"), flow.target)
    return source.wire_bytes == target.wire_bytes == 0


def _all_short(rails: Sequence[Rail], movement: Movement, known: Sequence[Flow], limits: Tolerances) -> bool:
    """Fewer bytes than were selected on every rail and in all, at both sides alike."""
    for flow in known:
        carried = {rail.local: flow.selected.get(rail.local, 0) for rail in rails}
        seen = [(movement.wire("source", [name], flow.source), n) for name, n in carried.items() if n]
        total = sum(carried.values())
        seen.append((movement.wire("source", movement.devices("source"), flow.source), total))
        seen.append((movement.wire("target", movement.devices("target"), flow.target), total))
        if any(moved.wire_bytes is None or moved.wire_bytes >= (1 - limits.below) * n for moved, n in seen):
            return False
    return True


def _four_times(rails: Sequence[Rail], movement: Movement, known: Sequence[Flow], limits: Tolerances) -> bool:
    """Bytes taken for words on most rails, none of them as selected, and in all at both sides.

    Not on every rail: one that is broken besides must not have the healthy ones accused of the unit.
    """
    for flow in known:
        carried = {rail.local: flow.selected.get(rail.local, 0) for rail in rails}
        if not any(carried.values()):
            continue
        seen = [(movement.wire("source", [name], flow.source).wire_bytes, n) for name, n in carried.items() if n]
        ratios = [wire / n for wire, n in seen if wire is not None]
        fourfold = [ratio for ratio in ratios if limits.allow(ratio / WORD)]
        if 2 * len(fourfold) <= len(ratios) or any(map(limits.allow, ratios)):
            return False
        remotes = {remote for rail in rails for remote in rail.remotes}
        arrived = movement.wire("target", remotes, flow.target).wire_bytes
        ratio = WORD if arrived is None else arrived / sum(carried.values())
        if not WORD / 2 < ratio <= WORD * (1 + limits.above):
            return False
    return True


def _transferred(records: Records) -> list[Reason]:
    lone = [line for line, _ in records.alone]
    unequal = [
        (p.line, p.record.selection.selected_bytes, p.target.aggregate_transferred_bytes)
        for p in records.pairs
        if p.target and p.target.aggregate_transferred_bytes != p.record.selection.selected_bytes
    ]
    reasons = []
    if lone:
        text = f"{_at(lone)}: a target record without selection record; its bytes are on the wire, not in a window"
        reasons.append(Reason("window_without_record", text, decides=True, shakes=True))
    if unequal:
        _, chosen, moved = unequal[0]
        text = f"{chosen} bytes were selected and {moved} transferred; on a clean run they are equal"
        where = _at([line for line, _, _ in unequal])
        reasons.append(Reason("bytes_differ", f"{where}: {text}", decides=True, shakes=True))
    return reasons


def _operations(records: Records) -> list[Reason]:
    reasons = []
    if lines := differing(records):
        text = f"{_at(lines)}: op_type differs from the target record's"
        reasons.append(Reason("operation_differs", text, shakes=True))
    if unknown := without_direction(records):
        names = ", ".join(map(repr, unknown[:SHOWN]))
        text = f"op_type {names} has no direction known here (write, read or mix): counters cannot be compared"
        reasons.append(Reason("operation_unknown", text, decides=True))
    return reasons


def _requests(records: Records) -> list[Reason]:
    both = [
        (p.line, p.record.selection.allocations, p.target.aggregate_operations) for p in records.pairs if p.target
    ]
    apart = [one for one in both if one[1] != one[2]]
    if not apart:
        return []
    _, allocations, operations = apart[0]
    text = (
        f"{allocations} allocations for {operations} operations (requests are merged or cut); bytes are compared"
    )
    return [Reason("allocations_differ", f"{_at([line for line, _, _ in apart])}: {text}")]


def _at(lines: Sequence[int]) -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"line {lines[0]}{more}"
