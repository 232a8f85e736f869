"""What changed between two topologies, in words. GPUs are matched by their device ids, so that ranks that were
renumbered are told from GPUs that were moved or replaced. How an id is spelt makes no difference; ids of two
notations (``GPU0``, then a UUID) say neither that a GPU is the same nor that it was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from app.localization.placement import Place, Placement
from app.topology.rules import identity, is_global, written

ChangeKind = Literal["renumbered", "moved", "replaced", "changed", "added", "removed", "switch"]

_FIELDS = {"nic": "NIC", "rail": "rail", "leaf": "leaf", "rack": "rack"}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one GPU, or to one switch.

    Parameters
    ----------
    kind : str
        The weightiest of what happened: ``replaced`` (another device at its rank), ``moved`` (to another host),
        ``renumbered``, ``changed`` (NIC, rail, leaf, rack, or how its id is written), ``added``, ``removed``, or
        ``switch``.
    text : str
        All of it in words.
    old_rank, rank : int or None
        Its rank before and now.
    """

    kind: ChangeKind
    text: str
    old_rank: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Two topologies compared.

    Parameters
    ----------
    changes : tuple of Change
        By rank, switches last.
    ranks : tuple of (int or None)
        For every rank of the old one, the rank that the same GPU has in the new one; None where it is gone, or
        where no device id says which it is.
    unchanged : tuple of int
        Ranks of the new one whose GPU, host, NIC, rail, leaf, rack and switches are those of before: among them,
        measurements from either time can be compared.
    """

    changes: tuple[Change, ...]
    ranks: tuple[int | None, ...]
    unchanged: tuple[int, ...]


def diff(old: Placement, new: Placement) -> Difference:
    """Compare two topologies.

    Examples
    --------
    >>> before = Placement((Place("host-a", "GPU-1"), Place("host-c", "GPU-2", nic="mlx5_3")))
    >>> after = Placement((Place("host-a", "GPU-1"), Place("host-f", "GPU-2", nic="mlx5_9")))
    >>> diff(before, after).changes[0].text
    'rank 1 (GPU-2) moved from host-c to host-f; NIC mlx5_3 replaced by mlx5_9'
    """
    pairs = dict(_matched(old, new))
    same = {before: now for before, now in pairs.items() if _same_gpu(old.places[before], new.places[now])}
    unchanged = sorted(now for before, now in same.items() if _same_place(old, before, new, now))
    return Difference(
        (*_gpus(old, new, pairs), *_switches(old, new)),
        tuple(same.get(rank) for rank in range(len(old.places))),
        tuple(unchanged),
    )


def _gpus(old: Placement, new: Placement, pairs: Mapping[int, int]) -> Iterator[Change]:
    """What happened to GPUs: those that are there by rank, then those that are gone."""
    before = {now: rank for rank, now in pairs.items()}
    for rank, place in enumerate(new.places):
        if rank not in before:
            yield Change("added", f"{_name(rank, place)} is new, on {place.host}", None, rank)
        elif change := _pair(before[rank], old.places[before[rank]], rank, place):
            yield change
    for rank, place in enumerate(old.places):
        if rank not in pairs:
            yield Change("removed", f"{_name(rank, place)} is gone from {place.host}", rank, None)


def _identity(place: Place) -> tuple[str, str] | None:
    return None if place.device is None else identity(place.host, place.device)


def _matched(old: Placement, new: Placement) -> Iterator[tuple[int, int]]:
    """Old and new rank of GPUs that are the same, then of those that are at the same rank."""
    by_identity = {_identity(place): rank for rank, place in enumerate(new.places) if place.device is not None}
    taken: set[int] = set()
    left: list[int] = []
    for rank, place in enumerate(old.places):
        now = by_identity.get(_identity(place))
        if now is None:
            left.append(rank)
        else:
            taken.add(now)
            yield rank, now
    for rank in left:
        if rank < len(new.places) and rank not in taken:
            yield rank, rank


def _same_gpu(before: Place, now: Place) -> bool:
    """Whether two matched places hold the same GPU; on one host and without an id, its rank must do."""
    if before.device is None or now.device is None:
        return before.host == now.host
    if _two_notations(before, now):
        return _alike(before, now)
    return _identity(before) == _identity(now)


def _two_notations(a: Place, b: Place) -> bool:
    """Whether two device ids are stated, and written so that they cannot be compared."""
    if a.device is None or b.device is None:
        return False
    return written(a.device).notation != written(b.device).notation


def _alike(a: Place, b: Place) -> bool:
    """Whether all that is stated of two places fits one GPU, whose ids are of two notations."""
    stated = [(getattr(a, field), getattr(b, field)) for field in ("host", *_FIELDS)]
    # Two programs may count the GPUs of a host in different orders: other numbers are at least no sign of one GPU.
    stated.append((written(a.device or "").number, written(b.device or "").number))
    return all(None in pair or pair[0] == pair[1] for pair in stated)


def _same_place(old: Placement, before: int, new: Placement, now: int) -> bool:
    a, b = old.places[before], new.places[now]
    fields = ("host", *_FIELDS)
    return all(getattr(a, f) == getattr(b, f) for f in fields) and old.switches(a.leaf) == new.switches(b.leaf)


def _pair(before: int, a: Place, now: int, b: Place) -> Change | None:
    """What happened between two matched places; None when nothing did."""
    parts = list(_parts(a, b))
    if before != now:
        of_host = "" if b.device is None or is_global(b.device) else f" of {b.host}"
        parts.insert(0, f"device {b.device}{of_host} is now rank {now} (was {before})")
    if not parts:
        return None
    kind = _kind(before, a, now, b)
    if before != now:
        return Change(kind, "; ".join(parts), before, now)
    start = f"rank {now}" if _other_device(a, b) or _two_notations(a, b) else _name(now, b)
    return Change(kind, f"{start}{' ' if a.host != b.host else ': '}{'; '.join(parts)}", before, now)


def _parts(a: Place, b: Place) -> Iterator[str]:
    if a.host != b.host:
        yield f"moved from {a.host} to {b.host}"
    if _two_notations(a, b):
        yield f"device id now {b.device} (was {a.device}, another notation)"
    elif _text(a.device) != _text(b.device):
        yield _stated("device", a.device, b.device)
    for field, word in _FIELDS.items():
        if getattr(a, field) != getattr(b, field):
            yield _stated(word, getattr(a, field), getattr(b, field))


def _text(device: str | None) -> str | None:
    return None if device is None else written(device).text


def _kind(before: int, a: Place, now: int, b: Place) -> ChangeKind:
    if _other_device(a, b):
        return "replaced"
    if a.host != b.host:
        return "moved"
    return "renumbered" if before != now else "changed"


def _other_device(a: Place, b: Place) -> bool:
    """Whether two devices at one rank are known to be others; numbers in two hosts do not say it."""
    if a.device is None or b.device is None or _two_notations(a, b) or _text(a.device) == _text(b.device):
        return False
    return a.host == b.host or is_global(a.device)


def _name(rank: int, place: Place) -> str:
    return f"rank {rank}" if place.device is None else f"rank {rank} ({place.device})"


def _stated(word: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{word} now stated: {new}"
    return f"{word} no longer stated (was {old})" if new is None else f"{word} {old} replaced by {new}"


def _switches(old: Placement, new: Placement) -> Iterator[Change]:
    for switch in sorted({*old.parents, *new.parents}):
        before, now = old.parents.get(switch), new.parents.get(switch)
        if before == now:
            continue
        where = "under no stated switch" if now is None else f"under {now}"
        was = "under none" if before is None else f"under {before}"
        yield Change("switch", f"switch {switch} is now {where} (was {was})")
