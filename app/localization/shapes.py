"""Probe shapes: directed graphs of sends, with the sequences that each send carries.

The paper's probe is a clique. With a token a GPU and a request a rank, one probe can be any graph: the fewer
receivers a rank has, the less a slow path is diluted by the others (DESIGN section 5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.localization.components import Component, gpu, path
from app.localization.errors import ShapeError

Sends = dict[int, dict[int, int]]
"""sender -> receiver -> sequences."""
Ranks = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Edges:
    """The sends of a shape as arrays of one length, self-loops included.

    Parameters
    ----------
    sender, receiver, sequences : ndarray of int
        One entry a send.
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    sequences: NDArray[np.int64]

    @cached_property
    def over_paths(self) -> NDArray[np.bool_]:
        """Which sends leave their GPU."""
        leaving: NDArray[np.bool_] = self.sender != self.receiver
        return leaving


class Shape(ABC):
    """What one probe sends."""

    @property
    @abstractmethod
    def members(self) -> Ranks:
        """Ranks that send or receive, ascending."""

    @property
    @abstractmethod
    def edges(self) -> Edges:
        """Every send."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Plain JSON types; the inverse of `read_shape`."""

    @cached_property
    def sends(self) -> Sends:
        """Receivers and sequences of every sender."""
        sends: Sends = {}
        columns = self.edges.sender, self.edges.receiver, self.edges.sequences
        for sender, receiver, count in zip(*(column.tolist() for column in columns), strict=True):
            row = sends.setdefault(sender, {})
            row[receiver] = row.get(receiver, 0) + count
        return sends

    @property
    def path_units(self) -> int:
        """Directed paths times sequences on each: multiplied by the tokens a sequence, the communication cost."""
        return int(self.edges.sequences[self.edges.over_paths].sum())

    @cached_property
    def load(self) -> int:
        """Most sequences that a rank sends or receives: what a server's limits are held against."""
        sent = np.bincount(self.edges.sender, self.edges.sequences)
        received = np.bincount(self.edges.receiver, self.edges.sequences)
        return int(max(sent.max(), received.max()))

    def components(self, *, paths: bool = True) -> list[Component]:
        """Every GPU, and (with ``paths``) every path, that the probe touches."""
        gpus = [gpu(rank) for rank in self.members]
        if not paths:
            return gpus
        crossed = {(min(u, v), max(u, v)) for u, row in self.sends.items() for v in row if u != v}
        return gpus + [path(u, v) for u, v in sorted(crossed)]


@dataclass(frozen=True)
class Clique(Shape):
    """Every member sends to every member, itself included (the paper's probe, A = B = S).

    Parameters
    ----------
    ranks : tuple of int
        Ascending; one member means a self-loop.
    sequences : int
        Sequences on each send.
    """

    ranks: Ranks
    sequences: int = 1

    @property
    def members(self) -> Ranks:
        return self.ranks

    @cached_property
    def edges(self) -> Edges:
        ranks = np.array(self.ranks, dtype=np.intp)
        size = len(ranks)
        return Edges(np.repeat(ranks, size), np.tile(ranks, size), np.full(size * size, self.sequences))

    def document(self) -> dict[str, Any]:
        return {"kind": "clique", "ranks": list(self.ranks), "sequences": self.sequences}


@dataclass(frozen=True)
class Bipartite(Shape):
    """Every sender sends to every receiver.

    Parameters
    ----------
    senders, receivers : tuple of int
        Ascending; a rank may be in both.
    sequences : int
        Sequences on each send.
    """

    senders: Ranks
    receivers: Ranks
    sequences: int = 1

    @cached_property
    def members(self) -> Ranks:
        return tuple(sorted({*self.senders, *self.receivers}))

    @cached_property
    def edges(self) -> Edges:
        senders, receivers = np.array(self.senders, dtype=np.intp), np.array(self.receivers, dtype=np.intp)
        count = np.full(len(senders) * len(receivers), self.sequences)
        return Edges(np.repeat(senders, len(receivers)), np.tile(receivers, len(senders)), count)

    def document(self) -> dict[str, Any]:
        return {
            "kind": "bipartite",
            "senders": list(self.senders),
            "receivers": list(self.receivers),
            "sequences": self.sequences,
        }


@dataclass(frozen=True)
class Shift(Shape):
    """An r-regular digraph: in every ring, each rank sends to those that follow it by each of ``shifts``.

    Every rank sends to r others and receives from r, so all GPUs carry the same load.

    Parameters
    ----------
    rings : tuple of tuple of int
        Disjoint cyclic orders; in a ring of m ranks a shift counts modulo m, so it may end at the rank itself.
    shifts : tuple of int
        Distances, at least 1.
    sequences : int
        Sequences on each send.
    """

    rings: tuple[Ranks, ...]
    shifts: tuple[int, ...]
    sequences: int = 1

    @cached_property
    def members(self) -> Ranks:
        return tuple(sorted(rank for ring in self.rings for rank in ring))

    @cached_property
    def edges(self) -> Edges:
        rings = [np.array(ring, dtype=np.intp) for ring in self.rings]
        sender = np.concatenate([ring for ring in rings for _ in self.shifts])
        receiver = np.concatenate([np.roll(ring, -shift) for ring in rings for shift in self.shifts])
        return Edges(sender, receiver, np.full(len(sender), self.sequences))

    def document(self) -> dict[str, Any]:
        return {
            "kind": "shift",
            "rings": [list(ring) for ring in self.rings],
            "shifts": list(self.shifts),
            "sequences": self.sequences,
        }


@dataclass(frozen=True)
class Exchange(Shape):
    """Pairs exchange sequences both ways and everyone fills up with self-loops, so all ranks carry the same load.

    A rank with d of the at most D pairs a rank sends ``width // D`` to each partner and the rest to itself.

    Parameters
    ----------
    ranks : tuple of int
        Who takes part, ascending; without pairs, all only send to themselves.
    pairs : tuple of (int, int)
        Different pairs of ``ranks``, each ascending.
    width : int
        Sequences that every rank sends and receives; at least D.
    """

    ranks: Ranks
    pairs: tuple[Pair, ...] = ()
    width: int = 1

    @property
    def members(self) -> Ranks:
        return self.ranks

    @cached_property
    def degree(self) -> int:
        """Most pairs that a rank is in: the dilution of a slow path; 0 without pairs."""
        return max(Counter(rank for pair in self.pairs for rank in pair).values(), default=0)

    @cached_property
    def edges(self) -> Edges:
        ranks, each = np.array(self.ranks, dtype=np.intp), self.width // max(1, self.degree)
        ends = np.array(self.pairs, dtype=np.intp).reshape(-1, 2)
        degrees = np.bincount(ends.ravel(), minlength=int(ranks.max()) + 1)[ranks]
        own = self.width - each * degrees
        loops = own > 0
        return Edges(
            np.concatenate([ends[:, 0], ends[:, 1], ranks[loops]]),
            np.concatenate([ends[:, 1], ends[:, 0], ranks[loops]]),
            np.concatenate([np.full(2 * len(ends), each), own[loops]]),
        )

    def document(self) -> dict[str, Any]:
        return {
            "kind": "exchange",
            "ranks": list(self.ranks),
            "pairs": [list(pair) for pair in self.pairs],
            "width": self.width,
        }


def read_shape(document: object) -> Shape:
    """Read what `Shape.document` wrote.

    Raises
    ------
    ShapeError
        Unknown kind, a missing field, or one of the wrong type; the text names it.
    """
    if not isinstance(document, Mapping):
        raise ShapeError("is not an object")
    kind = document.get("kind")
    if kind == "clique":
        return Clique(_ranks(document, "ranks"), _count(document, "sequences"))
    if kind == "bipartite":
        ends = _ranks(document, "senders"), _ranks(document, "receivers")
        return Bipartite(*ends, _count(document, "sequences"))
    if kind == "shift":
        rings = document.get("rings")
        if not isinstance(rings, list) or not rings:
            raise ShapeError("rings must be a list of lists of ranks")
        whole = tuple(_rank_list(ring, "rings") for ring in rings)
        if len({rank for ring in whole for rank in ring}) != sum(map(len, whole)):
            raise ShapeError("rings must not share ranks")
        shifts = _ranks(document, "shifts")
        if shifts[0] < 1:
            raise ShapeError("shifts must be at least 1")
        return Shift(whole, shifts, _count(document, "sequences"))
    if kind == "exchange":
        exchange = Exchange(_ranks(document, "ranks"), _pairs(document), _count(document, "width"))
        if exchange.width < exchange.degree:
            raise ShapeError(f"width must be at least {exchange.degree}, the most pairs that a rank is in")
        return exchange
    raise ShapeError(f"kind must be clique, bipartite, shift or exchange, got {kind!r}")


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or value < 1:
        raise ShapeError(f"{name} must be a whole number, at least 1")
    return value


def _ranks(document: Mapping[str, Any], name: str) -> Ranks:
    ranks = _rank_list(document.get(name), name)
    if any(a >= b for a, b in pairwise(ranks)):
        raise ShapeError(f"{name} must ascend")
    return ranks


def _rank_list(value: object, name: str) -> Ranks:
    if not isinstance(value, list) or not value or not all(type(rank) is int and rank >= 0 for rank in value):
        raise ShapeError(f"{name} must be a list of whole numbers, zero or above")
    return tuple(value)


def _pairs(document: Mapping[str, Any]) -> tuple[Pair, ...]:
    pairs = document.get("pairs")
    if not isinstance(pairs, list):
        raise ShapeError("pairs must be a list")
    read = [_rank_list(pair, "pairs") for pair in pairs]
    known = set(_ranks(document, "ranks"))
    if any(len(pair) != 2 or pair[0] >= pair[1] or not known.issuperset(pair) for pair in read):
        raise ShapeError("pairs must be ascending pairs of the ranks")
    if len(set(read)) != len(read):
        raise ShapeError("pairs must differ")
    return tuple((u, v) for u, v in read)
