"""Shared parts of a matrix: which NIC, uplink, fabric, leaf or rail makes all paths over it slow, and no others.

A part is named only where every rank at it is slow on the paths over it, to every other host, where its ranks are
not slow on their other paths, where its like beside it are not slow, too, and where three pairs of its like show
what is normal. With two leaves or two hosts nothing does: the step between them may be the fabric as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from app.analyses.fit import Vector
from app.analyses.hop_classes import spread, symmetric
from app.analyses.judging import LEAST, times
from app.analyses.matrix_suspects import Findings
from app.analyses.parts import Part, Shape, shapes
from app.analyses.records import Matrix, PathMatrix, Suspect
from app.analyses.topology import Ints, Mask, Seats

_SIGMAS = 5.0
#: Parts that may be slow at once, and candidates that are looked at closely for each.
_MOST = 4
_CLOSELY = 12
#: Means overrate what a few wild paths do: nothing counts for more than this, in logarithm.
_WILD = 1.5
#: Directed paths of a class, and pairs of other parts, that it takes to say what is normal.
_LEAST_LIKE = 12
_LEAST_PAIRS = 3


def find_parts(matrix: PathMatrix, badness: Matrix, classes: Ints, seats: Seats, found: Findings) -> Matrix:
    """Slow shared parts; the badness without what they explain.

    Parameters
    ----------
    matrix : PathMatrix
        Names.
    badness : ndarray
        Logarithm, higher is worse; (n, n), NaN where unknown and on the diagonal.
    classes : ndarray
        int, (n, n): class of each path by the topology; -1 on the diagonal.
    seats : Seats
        Where the ranks sit.
    found : Findings
        Takes the suspects and reasons.
    """
    kinds = shapes(seats)
    for _ in range(_MOST):
        view = _View(symmetric(badness), classes, seats)
        best = _best(view, kinds)
        if best is None:
            break
        badness = _report(matrix, badness, view, best, found)
    return badness


@dataclass(frozen=True)
class _View:
    """A matrix as the parts are looked for in it."""

    both: Matrix
    classes: Ints
    seats: Seats

    @cached_property
    def ends(self) -> dict[int, tuple[Ints, Ints, Vector]]:
        """By class the ends and values of its known paths, each once."""
        known = np.triu(np.isfinite(self.both), 1)
        found = {}
        for code in np.unique(self.classes[known]):
            i, j = np.nonzero(known & (self.classes == code))
            found[int(code)] = (i, j, self.both[i, j])
        return found

    @cached_property
    def levels(self) -> Matrix:
        """Each path against its class, without wild ones; 0 where unknown."""
        centred = np.zeros_like(self.both)
        for code, (_, _, values) in self.ends.items():
            here = self.classes == code
            centred[here] = self.both[here] - np.median(values)
        return np.nan_to_num(np.clip(centred, -_WILD, _WILD))


@dataclass(frozen=True, slots=True)
class _Slow:
    """A part that is slow: how much, the level of each class without it, and what else has the same paths."""

    part: Part
    excess: float
    normal: dict[int, float]
    #: Whether its members' other paths could be compared.
    compared: bool
    alike: tuple[str, ...] = ()


def _best(view: _View, kinds: list[Shape]) -> _Slow | None:
    """The part that explains most, if one does."""
    candidates: list[tuple[float, float, Part]] = []
    for shape in kinds:
        excess, cells = _screen(view, shape)
        for part in shape.parts():
            if excess[part.number] >= LEAST / 2:
                gain = float(excess[part.number] * cells[part.number])
                candidates.append((gain, spread(np.delete(excess, part.number)), part))
    candidates.sort(key=lambda candidate: -candidate[0])
    for _, sigma, part in candidates[:_CLOSELY]:
        slow = _weigh(view, part, sigma)
        if slow is not None:
            same = [other for _, _, other in candidates if other is not part and _same_paths(part, other)]
            return replace(slow, alike=tuple(dict.fromkeys(map(_title, same))))
    return None


def _screen(view: _View, shape: Shape) -> tuple[Vector, Vector]:
    """Mean excess of each part over the rest of its classes (NaN without such), and how many paths tell it."""
    at, parts = shape.level.at, len(shape.level.names)
    placed = at >= 0
    reach = shape.reach & np.isfinite(view.both)
    if shape.inward:
        reach = reach & ~shape.level.differ() & placed[:, None]
    excess, cells = np.zeros(parts), np.zeros(parts)
    for code in view.ends:
        here = reach & (view.classes == code)
        sums, counts = (here * view.levels).sum(axis=1), here.sum(axis=1)
        own, number = (
            np.bincount(at[placed], weights=of[placed], minlength=parts).astype(np.float64)
            for of in (sums, counts)
        )
        # Seen from both ends, an outward path counts twice in the total.
        times_counted = 1 if shape.inward else 2
        rest = counts.sum() - times_counted * number
        told = (number > 0) & (rest > 0)
        other = (sums.sum() - times_counted * own)[told] / rest[told]
        excess[told] += own[told] - number[told] * other
        cells[told] += number[told]
    return np.divide(excess, cells, out=np.full(parts, np.nan), where=cells > 0), cells


def _weigh(view: _View, part: Part, sigma: float) -> _Slow | None:
    """The part, if it is slow beyond doubt."""
    members, over = part.members, part.paths()
    rows = view.both[members]
    over &= np.isfinite(rows)
    beside = np.isfinite(rows) & ~over
    normal, noise = _normal(view, part, over, beside)
    rows = rows - _of_class(view.classes[members], normal)
    over &= np.isfinite(rows)
    if np.count_nonzero(over) < _LEAST_LIKE or not over.any(axis=1).all():
        return None
    excess = float(np.median(rows[over]))
    scale = max(sigma, 0.01, 1.2533 * noise / np.sqrt(np.count_nonzero(over)))
    if excess < max(LEAST, _SIGMAS * scale) or _mates_too(view, part, normal, excess):
        return None
    beside &= np.isfinite(rows)
    codes = view.classes[members]
    peers = np.broadcast_to(view.seats.host.at, over.shape)
    owners = np.broadcast_to(np.arange(len(members))[:, None], over.shape)
    throughout = all(_medians(rows, over, of).min() >= excess / 2 for of in (codes, owners, peers))
    most = max(_medians(rows, beside, of).max(initial=-np.inf) for of in (codes, owners))
    slow = throughout and most < min(LEAST, excess / 2)
    return _Slow(part, excess, normal, bool(beside.any())) if slow else None


def _normal(view: _View, part: Part, over: Mask, beside: Mask) -> tuple[dict[int, float], float]:
    """Level of each class on the paths that do not touch the part, where enough tell it; their spread."""
    touched = np.zeros(len(view.both), dtype=bool)
    touched[part.members] = True
    at = part.shape.level.at
    codes = view.classes[part.members]
    concerned = set(map(int, np.unique(codes[over])))
    like: dict[int, Vector] = {}
    pairs: set[int] = set()
    for code, (i, j, values) in view.ends.items():
        rest = ~(touched[i] | touched[j])
        one, two, like[code] = at[i[rest]], at[j[rest]], values[rest]
        if code in concerned:
            pairs |= {*np.unique(np.minimum(one, two) * (len(at) + 1) + np.maximum(one, two)).tolist()}
    if len(pairs) < (2 if part.shape.inward else _LEAST_PAIRS):
        for code in concerned:
            like[code] = _across_rails(view, part, like[code], beside & (codes == code + 1))
    enough = {code: values for code, values in like.items() if 2 * len(values) >= _LEAST_LIKE}
    noise = max((spread(values) for code, values in enough.items() if code in concerned), default=0.0)
    return {code: float(np.median(values)) for code, values in enough.items()}, noise


def _mates_too(view: _View, part: Part, normal: dict[int, float], excess: float) -> bool:
    """Whether the others in what is around the part are slow out of it, too."""
    mates, out = part.mates()
    cells = (view.both[mates] - _of_class(view.classes[mates], normal))[out]
    known = cells[np.isfinite(cells)]
    return bool(known.size and np.median(known) >= excess / 2)


def _across_rails(view: _View, part: Part, others: Vector, cells: Mask) -> Vector:
    """What tells the normal level of one of two rails: the other one, or, where slower, the way across rails.

    Either of the two may be the odd one, but no rail is slower than the way across. Empty for other parts.
    """
    rail = part.shape.inward and part.shape.level is view.seats.rail
    if not rail or not others.size:
        return others[:0]
    return np.maximum(np.median(others), view.both[part.members][cells])


def _of_class(codes: Ints, levels: dict[int, float]) -> Matrix:
    found = np.full(codes.shape, np.nan)
    for code, level in levels.items():
        found[codes == code] = level
    return found


def _medians(rows: Matrix, where: Mask, of: Ints) -> Vector:
    """Median for each number of ``of`` over the cells that count."""
    values, numbers = rows[where], of[where]
    return np.array([np.median(values[numbers == number]) for number in np.unique(numbers)])


def _same_paths(one: Part, other: Part) -> bool:
    return np.array_equal(one.members, other.members) and np.array_equal(one.paths(), other.paths())


def _title(part: Part) -> str:
    return f"{part.shape.word} {part.name}"


def _report(matrix: PathMatrix, badness: Matrix, view: _View, slow: _Slow, found: Findings) -> Matrix:
    """Add the suspect; the badness without it."""
    part, labels = slow.part, [matrix.labels[i] for i in slow.part.members]
    left, out, back = _without(badness, view, slow)
    one_way = min(out, back) < max(out, back) / 2
    size = max(out, back) if one_way else slow.excess
    name = f"{_title(part)} {{{','.join(map(str, labels))}}}"
    found.suspects.append(Suspect("group", labels, times(size), name))
    spared = f", and not {part.shape.spared}" if slow.compared else ""
    alike = f"; the same paths are those of {', '.join(slow.alike)}" if slow.alike else ""
    slower = f"all {len(labels)} ranks there are {np.exp(size):.1f}x slower than their like {part.shape.slow}"
    found.note("shared_part", f"{matrix.title}: {_title(part)}: {slower}{spared}{alike}")
    if one_way:
        where = "rows" if out > back else "columns"
        found.note("one_direction", f"{matrix.title}: {_title(part)} is slow only in the {where} of its ranks")
    return left


def _without(badness: Matrix, view: _View, slow: _Slow) -> tuple[Matrix, float, float]:
    """The badness without a part, and by how much it is slow in the rows and in the columns of its ranks."""
    against = badness - _of_class(view.classes, slow.normal)
    over = np.zeros(badness.shape, dtype=bool)
    over[slow.part.members] = slow.part.paths()
    over &= np.isfinite(_of_class(view.classes, slow.normal))
    within = over & over.T
    left, found = np.where(within, badness - slow.excess, badness), []
    for way in (over & ~within, (over & ~within).T):
        cells = against[way & np.isfinite(against)]
        found.append(float(np.median(cells)) if cells.size else slow.excess)
        left = np.where(way, left - found[-1], left)
    return left, found[0], found[1]
