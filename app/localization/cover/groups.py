"""Recipes over transversal designs: cut one group, add common points, fill the groups with smaller covers.

Sources: Gordon, Kuperberg and Patashnik, New constructions for covering designs, J. Combin. Designs 3 (1995);
Colbourn and Dinitz (eds.), Handbook of Combinatorial Designs, 2nd ed. (2007), IV.2 (Wilson's fundamental
construction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from app.localization.cover.classes import class_order
from app.localization.cover.designs import (
    Blocks,
    most_groups,
    parallel_classes,
    punctured_plane,
    transversal_design,
)
from app.localization.cover.recipes import Wanted, restricted
from app.localization.cover.seeds import hole_blocks


@dataclass(frozen=True, slots=True)
class Transversal:
    """TD(k, size) with its last group cut to ``last`` points; each group is filled together with common points.

    Parameters
    ----------
    size, last, common : int
        ``n = (k - 1) * size + last + common``.
    hole_points : int, optional
        Points of the seed with a hole of ``common`` points that fills all groups but one: it covers everything
        except the pairs of common points, which the one full piece covers.
    """

    size: int
    last: int
    common: int
    hole_points: int | None = None
    method: ClassVar[str] = "transversal"

    def build(self, wanted: Wanted, /) -> Blocks:
        """Rows of the design and pieces; a parallel class of rows first where the design has them."""
        n, k = wanted.n, wanted.k
        groups = _groups([self.size] * (k - 1) + [self.last])
        rows = [
            [group[symbol] for group, symbol in zip(groups, row, strict=True) if symbol < len(group)]
            for row in parallel_classes(k, self.size).tolist()
        ]
        common = list(range(n - self.common, n))
        groups = [group for group in groups if group]
        if most_groups(self.size) <= k:
            level = groups if self.last == self.size else groups[: k - 1]
            if self.hole_points is None:
                return _assembled(wanted, level, groups[len(level) :], common, rows)
        pieces = self._pieces(wanted, groups, common)
        front = sorted(rows[: self.size], key=len, reverse=True)
        count = -(-n // k)
        extra = max(0, count - self.size)  # blocks of the first piece, for the common points
        ordered = front[:count] + pieces[0][:extra] + front[count:] + rows[self.size :] + pieces[0][extra:]
        return ordered + [block for filled in pieces[1:] for block in filled]

    def _pieces(self, wanted: Wanted, groups: list[list[int]], common: list[int]) -> list[Blocks]:
        """Covers on the groups and the common points, a full one first."""
        if self.hole_points is None:
            return _fill(wanted, groups, common, common_in_front=True)
        if self.last:  # the full piece is the cheapest in the cut group
            groups = [groups[-1], *groups[:-1]]
        full = _fill(wanted, groups[:1], common, common_in_front=True)
        return full + [_place_hole(wanted.k, self.hole_points, group, common) for group in groups[1:]]


@dataclass(frozen=True, slots=True)
class Wilson:
    """TD(k + 1, size) with its last group cut to ``last``; every point stands for k - 1 points.

    A row of k + 1 becomes AG(2, k) without a point, a row of k becomes TD(k, k - 1); groups are filled together
    with common points. ``n = (k - 1) * (k * size + last) + common``.
    """

    size: int
    last: int
    common: int
    method: ClassVar[str] = "wilson"

    def build(self, wanted: Wanted, /) -> Blocks:
        """First classes of the pieces, then what joins the groups."""
        n, k, weight = wanted.n, wanted.k, wanted.k - 1
        starts = [[weight * p for p in group] for group in _groups([self.size] * k + [self.last])]
        long, short = punctured_plane(k), transversal_design(k, weight).tolist()
        joining = []
        for row in transversal_design(k + 1, self.size).tolist():
            at = [group[symbol] for group, symbol in zip(starts, row, strict=True) if symbol < len(group)]
            if len(at) > k:
                joining += [[at[group] + place for group, place in block] for block in long]
            else:
                joining += [[start + place for start, place in zip(at, block, strict=True)] for block in short]
        groups = _groups([weight * self.size] * k + [weight * self.last])
        common = list(range(n - self.common, n))
        return _assembled(wanted, groups[:k], [group for group in groups[k:] if group], common, joining)


def _groups(sizes: list[int]) -> list[list[int]]:
    """Consecutive points, group by group."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _fill(wanted: Wanted, groups: list[list[int]], common: list[int], *, common_in_front: bool) -> list[Blocks]:
    """A cover on each group with the common points; k common points are one block, kept once."""
    pieces = [
        _place(wanted.piece(len(group) + len(common)), wanted.k, group, common, common_in_front=common_in_front)
        for group in groups
    ]
    if len(common) == wanted.k:
        pieces = [pieces[0], *(filled[1:] for filled in pieces[1:])]
    return pieces


def _place(blocks: Blocks, k: int, group: list[int], common: list[int], *, common_in_front: bool) -> Blocks:
    """Put a cover on a group and the common points, so that these are whole blocks of its first class if they can.

    The points of that class are numbered block by block. The last block may touch few points for the first time,
    so the common points come last unless they fill blocks of k exactly.
    """
    order = class_order(blocks)
    if common and (common_in_front or len(common) % k == 0):
        targets = [*common, *group]
        if len(common) == k:  # a block may be short: padding it is free
            blocks = [order[:k], *blocks[1:]]
    else:
        targets = [*group, *common]
    at = dict(zip(order, targets, strict=True))
    return [[at[point] for point in block] for block in blocks]


def _place_hole(k: int, points: int, group: list[int], common: list[int]) -> Blocks:
    """A seed with a hole on the common points; the points it has too many are ordinary ones."""
    kept = [*range(len(group)), *range(points - len(common), points)]
    targets = [*group, *common]
    return [[targets[p] for p in block] for block in restricted(hole_blocks(k, points, len(common)), kept)]


def _assembled(
    wanted: Wanted, level: list[list[int]], cut: list[list[int]], common: list[int], joining: Blocks
) -> Blocks:
    """Groups of one size and a cut one, filled, and the blocks that join the groups; the first class in front.

    Where k does not divide the size of a group, some of its points are over. They are put on disjoint blocks that
    join the groups. So the class is: blocks inside the groups, those joining blocks, and blocks of the last piece
    for the cut group and the common points.
    """
    k, size = wanted.k, len(level[0])
    over = _disjoint(joining, level, size % k)
    taken = {point for block in over for point in block}
    level = [sorted(group, key=taken.__contains__) for group in level]  # what is over comes last
    pieces = _fill(wanted, [*level, *cut], common, common_in_front=False)
    first = list(over)
    for group, filled in zip(level, pieces, strict=False):
        inside = set(group) - taken
        first += [block for block in filled[: size // k + 1] if inside.issuperset(block)][: size // k]
    shared = pieces[0][:1] if len(common) == k else []
    last = pieces[-1] if cut else sorted(pieces[0], key=lambda block: -len(set(common).intersection(block)))
    first += shared + last[: -(-(sum(map(len, cut)) + len(common)) // k) - len(shared)]
    put = {id(block) for block in first}
    every = [block for filled in pieces for block in filled] + joining
    return first + [block for block in every if id(block) not in put]


def _disjoint(joining: Blocks, groups: list[list[int]], count: int) -> Blocks:
    """The first so many disjoint blocks that have a point in each of the groups and none elsewhere."""
    allowed = {point for group in groups for point in group}
    found: Blocks = []
    for block in joining:
        if len(found) == count:
            break
        if len(block) == len(groups) and allowed.issuperset(block):
            found.append(block)
            allowed.difference_update(block)
    return found
