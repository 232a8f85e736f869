"""Judge a matrix of waits: row i waited for column j, so whoever all others wait for is late, hence slow.

A wait is a floor, which the path sets, and what the column comes later than the row. Of the two directions of a
path only one holds the difference, so that their own difference is it: floors cancel, whatever the hop class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.analyses.fit import Vector, fit_effects
from app.analyses.hop_classes import find_classes
from app.analyses.judge_matrix import judge_matrix
from app.analyses.judging import inconclusive, suspect
from app.analyses.matrix_suspects import Findings, find_paths
from app.analyses.records import Judgement, Matrix, PathMatrix, Reason, Suspect
from app.analyses.topology import Ints

#: Who is late is so many times farther from the others than those are from each other: those of a level, as two
#: hosts make them, and all of them.
_FARTHER, _FARTHER_THAN_ALL = 3.0, 1.5
#: Ranks, or hosts, that it takes to tell who is late.
_LEAST = 4
#: Ranks of a host that it takes to tell how late they all are.
_LEAST_OF_HOST = 3


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """How much later than the others each rank arrives, and the wait for one that does not; as the values are."""

    late: Vector
    floor: float


def judge_waits(matrix: PathMatrix) -> Judgement:
    """Judge waits.

    Parameters
    ----------
    matrix : PathMatrix
        Values positive or NaN; higher is worse.

    Notes
    -----
    Whoever waits long is early, or slow to receive: that accuses nobody. Ranks are held against those of their own
    host where a placement tells it, since a whole host may start later.
    """
    if len(matrix.values) < _LEAST or matrix.baseline is not None:
        return judge_matrix(matrix)
    waits = matrix.values.astype(np.float64)
    np.fill_diagonal(waits, np.nan)
    if (np.isfinite(waits) | np.isfinite(waits.T)).sum(axis=1).min() < _LEAST - 1:
        return inconclusive("cells_missing", f"{matrix.title}: too many cells are missing to compare every rank")
    arrivals = _arrivals(waits)
    found = Findings()
    inside = _within_hosts(matrix, arrivals, found)
    late = _outliers(inside, arrivals.floor)
    for i in late:
        found.suspects.append(suspect(matrix.labels[i], None))
        found.reasons.append(_waited_for(found.suspects[-1].name, inside[i], arrivals.floor))
    if not found.suspects:
        _others(matrix, inside, arrivals.floor, found)
        if not found.open:
            _paths(matrix, waits, arrivals, found)
    return _conclude(matrix, inside, arrivals.floor, found)


def _arrivals(waits: Matrix) -> _Arrivals:
    floor = float(np.nanmedian(np.fmin(waits, waits.T)))
    difference = waits - waits.T
    # Where one direction is missing, the other is held against the floor: it tells lateness, not earliness.
    difference = np.where(
        np.isnan(difference), np.where(np.isnan(waits), floor - waits.T, waits - floor), difference
    )
    late = np.nanmedian(difference, axis=0)
    return _Arrivals(late - np.median(late), floor)


def _within_hosts(matrix: PathMatrix, arrivals: _Arrivals, found: Findings) -> Vector:
    """Lateness against one's own host; a host that is late as a whole is named if there are enough of them."""
    hosts = sorted(set(matrix.placement or ()))
    members: list[Ints] = [
        np.array([i for i, own in enumerate(matrix.placement or ()) if own == host]) for host in hosts
    ]
    if len(hosts) < 2 or min(map(len, members)) < _LEAST_OF_HOST:
        return arrivals.late
    levels = np.array([float(np.median(arrivals.late[ranks])) for ranks in members])
    if len(hosts) >= _LEAST:
        for i in _outliers(levels - np.median(levels), arrivals.floor):
            names = [matrix.labels[rank] for rank in members[i]]
            found.suspects.append(Suspect("group", names, None, f"group {hosts[i]}"))
            found.reasons.append(_waited_for(f"group {hosts[i]}", float(levels[i]), arrivals.floor))
    elif float(np.ptp(levels)) >= arrivals.floor:
        last = hosts[int(np.argmax(levels))]
        text = f"{matrix.title}: the ranks of {last} arrive later, all of them; judged within each host"
        found.note("host_later", text)
    inside: Vector = arrivals.late.copy()
    for ranks, level in zip(members, levels, strict=True):
        inside[ranks] -= level
    return inside


def _outliers(late: Vector, floor: float) -> list[int]:
    """Those at the end of the order that are far from all others, as measured by these and by the floor."""
    order = np.argsort(late)
    best, most = 0, 0.0
    for count in range(1, max(1, len(late) // 4) + 1):
        rest = late[order[: len(late) - count]]
        gap = float(late[order[len(late) - count]] - rest[-1])
        least = max(floor, _FARTHER * _reach(rest), _FARTHER_THAN_ALL * float(rest[-1] - rest[0]))
        if gap > most and gap >= least:
            best, most = count, gap
    return sorted(int(i) for i in order[len(late) - best :])


def _reach(ordered: Vector) -> float:
    """How far from each other those of a level are, where a clean gap makes two large ones; else all of them."""
    gaps = np.diff(ordered)
    fewest = max(3, len(ordered) // 4)
    widest = int(np.argmax(gaps)) + 1
    if not fewest <= widest <= len(ordered) - fewest:
        return float(ordered[-1] - ordered[0])
    return float(max(ordered[widest - 1] - ordered[0], ordered[-1] - ordered[widest]))


def _waited_for(name: str, late: float, floor: float) -> Reason:
    text = f"others wait {1 + late / floor:.1f}x as long for {name}; its own slowdown is not in waits"
    return Reason("waited_for", text)


def _others(matrix: PathMatrix, late: Vector, floor: float, found: Findings) -> None:
    early = _outliers(-late, floor)
    if early:
        names = ", ".join(str(matrix.labels[i]) for i in early)
        text = f"{names} waits for all others: it is early, or slow to receive; waits do not tell which"
        found.doubt("waits_long", f"{matrix.title}: {text}")
    elif float(np.ptp(np.quantile(late, [0.1, 0.9]))) >= floor:
        found.doubt("waits_differ", f"{matrix.title}: ranks arrive at different times, but nobody alone is late")


def _paths(matrix: PathMatrix, waits: Matrix, arrivals: _Arrivals, found: Findings) -> None:
    """Single paths that take longer than floor and arrivals explain, if those explain the others."""
    explained = arrivals.floor + np.maximum(0.0, arrivals.late[None, :] - arrivals.late[:, None])
    badness = np.log(waits / explained)
    classes = find_classes(badness, matrix.placement)
    find_paths(matrix, classes, fit_effects(badness, classes), found)


def _conclude(matrix: PathMatrix, late: Vector, floor: float, found: Findings) -> Judgement:
    if found.suspects:
        return Judgement("localized", found.suspects, found.reasons)
    if found.open:
        return Judgement("inconclusive", reasons=found.reasons)
    share = float(np.ptp(late)) / floor
    text = f"{matrix.title}: nobody is late: ranks arrive within {100 * share:.0f} % of the least wait"
    return Judgement("healthy", reasons=[*found.reasons, Reason("all_alike", text)])


def judge_any(matrices: Sequence[PathMatrix]) -> list[Judgement]:
    """The judgement of each matrix."""
    return [judge_waits(matrix) if matrix.wait else judge_matrix(matrix) for matrix in matrices]
