"""What the records say was selected, and which counters show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.selection.counters import Direction
from app.selection.record import Pair, Records

# Counters that show the bytes of an operation, at the source and at the target.
_WAYS: Mapping[str, tuple[tuple[Direction, ...], tuple[Direction, ...]]] = {
    "write": (("transmit",), ("receive",)),
    "read": (("receive",), ("transmit",)),
    # A record of both does not say how many bytes went which way: only the sum can be compared.
    "mix": (("transmit", "receive"), ("transmit", "receive")),
}
_OTHER_WORDS = {"mixed": "mix"}


@dataclass(frozen=True)
class Flow:
    """Selected bytes by device that the same counters show."""

    operation: str
    selected: Mapping[str, int]
    source: tuple[Direction, ...]
    target: tuple[Direction, ...]


def operation(op_type: str) -> str:
    """One word for an operation, whatever its spelling."""
    word = op_type.strip().lower()
    return _OTHER_WORDS.get(word, word)


def without_direction(records: Records) -> list[str]:
    """Operations of which it is not known whose counters show them."""
    return sorted({operation(pair.record.op_type) for pair in records.pairs} - _WAYS.keys())


def flows(records: Records) -> tuple[Flow, ...]:
    """Sums over all windows, writes and reads apart; one sum of all when some window mixed them.

    Every operation must have a direction.
    """
    operations = {operation(pair.record.op_type) for pair in records.pairs}
    if "mix" in operations:
        return (Flow("mix", selected(records.pairs), *_WAYS["mix"]),)
    return tuple(
        Flow(name, selected([p for p in records.pairs if operation(p.record.op_type) == name]), *_WAYS[name])
        for name in sorted(operations)
    )


def selected(pairs: Collection[Pair]) -> Mapping[str, int]:
    """Selected bytes by device name, over some windows."""
    sums: Counter[str] = Counter()
    for pair in pairs:
        for device in pair.record.selection.devices:
            sums[device.device_name] += device.selected_bytes
    return sums


def differing(records: Records) -> list[int]:
    """Lines of the records whose target record says another operation."""
    return [
        p.line for p in records.pairs if p.target and operation(p.target.op_type) != operation(p.record.op_type)
    ]
