"""Chooses a rail for every slice of a request, and counts what it chose."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.selection.errors import NoRailError, SelectorError
from app.selection.record import DeviceSelection, Selection

Strategy = Literal["smart", "baseline"]

EXPLORE_EVERY = 100
MEMORY = 0.2
"""Weight of the newest speed in the learnt one."""
SHORTEST_S = 1e-9
"""No slice is answered faster: keeps learnt speeds finite."""


@dataclass(frozen=True)
class RailInfo:
    """A rail to choose from."""

    dev_id: int
    name: str
    numa_node: int = -1


class Slice(NamedTuple):
    """A part of a request and the rail that was chosen for it. ``topology`` is the selector's, by number."""

    dev_id: int
    n_bytes: int
    topology: int


@dataclass(frozen=True)
class Allocation:
    """What was chosen for one request; ``explored`` says that it was a scheduled exploration."""

    slices: tuple[Slice, ...] = ()
    explored: bool = False


class _Rail:
    """State of a rail (in flight, speed) and, apart from it, its counters."""

    __slots__ = ("available", "in_flight", "info", "selected_bytes", "selected_slices", "speed")

    def __init__(self, info: RailInfo) -> None:
        self.info = info
        self.available = True
        self.in_flight = 0
        self.speed: float | None = None
        self.selected_slices = 0
        self.selected_bytes = 0


class RailSelector:
    """Rails of one sender, safe for many threads.

    ``smart`` gives each slice to the rail with the least bytes in flight over learnt speed, the slice's own
    included, which spreads requests of several slices. Every 100th successful selection of two or more slices by a
    thread explores: its slices go round all rails, so that speeds of idle rails stay known. ``baseline`` always
    goes round and never explores.

    Counters record intent; they prove no traffic and never influence a choice.

    Parameters
    ----------
    rails : sequence of RailInfo
        They must all reach the same sender, or requests must name those that do: a choice must never change what a
        probe tests.
    strategy : str
        ``smart`` or ``baseline``.
    seed : int
        Where going round and breaking ties begin.

    Raises
    ------
    SelectorError
        When a ``dev_id`` stands twice.
    """

    def __init__(self, rails: Sequence[RailInfo], *, strategy: Strategy = "smart", seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._strategy = strategy
        self._seed = seed
        self._topology = -1
        self.replace_rails(rails)

    @property
    def topology(self) -> int:
        """Number of the topology; a window must begin and end with the same."""
        return self._topology

    def replace_rails(self, rails: Sequence[RailInfo]) -> None:
        """Take other rails; counters begin anew, which ends every open window."""
        if len({info.dev_id for info in rails}) != len(rails):
            raise SelectorError("a dev_id stands twice among the rails")
        with self._lock:
            self._topology += 1
            self._rails = {info.dev_id: _Rail(info) for info in sorted(rails, key=lambda one: one.dev_id)}
            self._turn = self._seed
            self._allocations = self._single = self._multi = self._probes = 0

    def set_available(self, dev_id: int, available: bool) -> None:
        """Say whether a rail may be chosen; its counters stay.

        Raises
        ------
        SelectorError
            When there is no such rail.
        """
        with self._lock:
            if dev_id not in self._rails:
                raise SelectorError(f"there is no rail {dev_id}")
            self._rails[dev_id].available = available

    def select(
        self, n_bytes: int, block_size: int, *, slices: int | None = None, among: Collection[int] | None = None
    ) -> Allocation:
        """Choose rails for a request.

        Parameters
        ----------
        n_bytes : int
            Of the request. With 0, nothing is chosen and nothing counted.
        block_size : int
            Bytes of a slice; the last one is charged the remainder.
        slices : int, optional
            Default: as many as hold the request. Fewer fold the tail into the last slice.
        among : collection of int, optional
            ``dev_id`` of the rails that may carry it. Default: all.

        Raises
        ------
        NoRailError
            When none of them is available; nothing is counted.
        SelectorError
            When the sizes do not fit together.
        """
        sizes = _sizes(n_bytes, block_size, slices)
        if not sizes:
            return Allocation()
        with self._lock:
            known = self._rails if among is None else sorted(self._rails.keys() & set(among))
            rails = [rail for dev_id in known if (rail := self._rails[dev_id]).available]
            if not rails:
                raise NoRailError("no rail that may carry the request is available")
            explored = self._explores(len(sizes))
            goes_round = explored or self._strategy == "baseline"
            chosen = self._round(rails, sizes) if goes_round else self._least_loaded(rails, sizes)
            self._count(chosen, sizes, explored)
            found = zip(chosen, sizes, strict=True)
            return Allocation(tuple(Slice(r.info.dev_id, n, self._topology) for r, n in found), explored)

    def release(self, done: Slice, seconds: float | None = None) -> None:
        """Take back a slice that has been answered; a positive time teaches the rail's speed."""
        with self._lock:
            rail = self._rails.get(done.dev_id)
            if rail is None or done.topology != self._topology:
                return
            rail.in_flight = max(0, rail.in_flight - done.n_bytes)
            if seconds is not None and seconds > 0:
                seen = done.n_bytes / max(seconds, SHORTEST_S)
                rail.speed = seen if rail.speed is None else rail.speed + MEMORY * (seen - rail.speed)

    def snapshot(self) -> Selection:
        """All counters at one time, as a new object: rails by ``dev_id``, idle and unavailable ones too."""
        with self._lock:
            return Selection(
                allocations=self._allocations,
                single_path_allocations=self._single,
                multi_path_allocations=self._multi,
                probe_allocations=self._probes,
                devices=[
                    DeviceSelection(
                        dev_id=rail.info.dev_id,
                        available=rail.available,
                        selected_slices=rail.selected_slices,
                        selected_bytes=rail.selected_bytes,
                        device_name=rail.info.name,
                        numa_node=rail.info.numa_node,
                    )
                    for rail in self._rails.values()
                ],
            )

    def _explores(self, slices: int) -> bool:
        """Count a multi-slice selection of this thread; whether it is the one that explores."""
        if slices < 2 or self._strategy == "baseline":
            return False
        self._thread.selections = getattr(self._thread, "selections", 0) + 1
        return bool(self._thread.selections % EXPLORE_EVERY == 0)

    def _round(self, rails: Sequence[_Rail], sizes: Sequence[int]) -> list[_Rail]:
        chosen = [rails[(self._turn + i) % len(rails)] for i in range(len(sizes))]
        self._turn += len(sizes)
        for rail, n in zip(chosen, sizes, strict=True):
            rail.in_flight += n
        return chosen

    def _least_loaded(self, rails: Sequence[_Rail], sizes: Sequence[int]) -> list[_Rail]:
        start = self._turn % len(rails)
        ordered = [*rails[start:], *rails[:start]]
        # A rail that has not answered yet is thought as fast as the fastest: it is tried, then known.
        fastest = max((rail.speed for rail in rails if rail.speed), default=1.0)
        self._turn += 1
        chosen = []
        for n in sizes:
            rail = min(ordered, key=lambda one: (one.in_flight + n) / (one.speed or fastest))
            rail.in_flight += n
            chosen.append(rail)
        return chosen

    def _count(self, chosen: Sequence[_Rail], sizes: Sequence[int], explored: bool) -> None:
        for rail, n in zip(chosen, sizes, strict=True):
            rail.selected_slices += 1
            rail.selected_bytes += n
        self._allocations += 1
        if len(set(chosen)) > 1:
            self._multi += 1
        else:
            self._single += 1
        self._probes += explored


def _sizes(n_bytes: int, block_size: int, slices: int | None) -> list[int]:
    if n_bytes < 0 or block_size < 1:
        raise SelectorError(f"a request of {n_bytes} bytes cannot be cut into slices of {block_size}")
    if slices == 0 or n_bytes == 0:
        return []
    count = -(-n_bytes // block_size) if slices is None else slices
    last = n_bytes - (count - 1) * block_size
    if count < 0 or last < 1:
        raise SelectorError(f"{count} slices of {block_size} bytes are more than a request of {n_bytes}")
    return [block_size] * (count - 1) + [last]
