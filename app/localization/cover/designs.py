"""Algebraic building blocks: transversal designs, lines of affine and projective spaces.

Sources: Colbourn and Dinitz (eds.), Handbook of Combinatorial Designs, 2nd ed. (2007), parts II and III.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.localization.cover.fields import factorize, field

Blocks = list[list[int]]
Rows = NDArray[np.int_]


@lru_cache(maxsize=2048)
def most_groups(size: int) -> int:
    """Largest u for which ``transversal_design(u, size)`` is built here (MacNeish's bound)."""
    orders: list[int] = [prime**power for prime, power in factorize(size).items()]
    return min(orders) + 1


def transversal_design(groups: int, size: int) -> Rows:
    """Rows in which every two columns show every pair of symbols once.

    Parameters
    ----------
    groups : int
        Columns, at most ``most_groups(size)``.
    size : int
        Symbols ``0..size-1`` of each column, at least 2.

    Returns
    -------
    array of int, shape (size ** 2, groups)
        A direct product of the designs over the prime powers of ``size``.
    """
    rows = np.zeros((1, groups), dtype=np.int_)
    for prime, power in factorize(size).items():
        order = prime**power
        rows = (rows[:, None, :] * order + _over_field(groups, order)[None]).reshape(-1, groups)
    return rows


def parallel_classes(groups: int, size: int) -> Rows:
    """A transversal design whose rows stand in parallel classes, where one column can be spared for that.

    Returns
    -------
    array of int, shape (size ** 2, groups)
        With ``groups < most_groups(size)``, rows ``i * size .. (i + 1) * size - 1`` touch each symbol of each
        column once.
    """
    if most_groups(size) <= groups:
        return transversal_design(groups, size)
    rows = transversal_design(groups + 1, size)
    return rows[np.argsort(rows[:, groups], kind="stable")][:, :groups]


def affine_lines(dimension: int, order: int) -> Blocks:
    """Lines of AG(dimension, order): blocks of ``order`` among ``order ** dimension`` points, by direction."""
    space = field(order**dimension)
    scalars = space.subfield(order)
    points = np.arange(space.order)
    lines: Blocks = []
    for direction in space.powers[: (space.order - 1) // (order - 1)]:
        through = np.sort(space.add(points[:, None], space.multiply(direction, scalars)[None, :]), axis=1)
        lines += through[through[:, 0] == points].tolist()  # each line once, from its lowest point
    return lines


def projective_lines(dimension: int, order: int) -> Blocks:
    """Lines of PG(dimension, order): blocks of ``order + 1`` among (order ** (dimension + 1) - 1)/(order - 1).

    Point i is the i-th power of a primitive element, so adding 1 to all points maps lines to lines (Singer). In
    an odd dimension the first lines are a spread: they touch every point once. In a plane they are the lines
    through one point.
    """
    space = field(order ** (dimension + 1))
    points = (space.order - 1) // (order - 1)
    log = np.zeros(space.order, dtype=np.int_)
    log[space.powers] = np.arange(space.order - 1) % points
    # Through point 0 (the element 1) and point i: the sums x + 1 for x on the ray of i, and 1 itself.
    others = space.powers[1:points]
    scalars = space.subfield(order)[1:]
    sums = space.add(space.multiply(others[:, None], scalars[None, :]), 1)
    through = np.column_stack((np.zeros(points - 1, dtype=np.int_), np.arange(1, points), log[sums]))
    through = np.array(sorted({tuple(sorted(set(line))) for line in through.tolist()}))
    shifted = np.sort((through[None] + np.arange(points)[:, None, None]) % points, axis=2)
    lines = np.unique(shifted.reshape(-1, order + 1), axis=0)
    ordered: Blocks = _spread_first(lines, dimension, order, points).tolist()
    return ordered


def _spread_first(lines: Rows, dimension: int, order: int, points: int) -> Rows:
    if dimension % 2:  # the rays of GF(order ** 2) and their shifts
        step = points // (order + 1)
        first = (lines % step == lines[:, :1] % step).all(axis=1)
    else:
        first = (lines == 0).any(axis=1)
    return np.concatenate((lines[first], lines[~first]))


def punctured_plane(order: int) -> list[list[tuple[int, int]]]:
    """AG(2, order) without a point: blocks of ``order`` on ``order + 1`` groups of ``order - 1`` points.

    Returns
    -------
    list of list of (group, place)
        Every two points of different groups are in one block.
    """
    lines = affine_lines(2, order)
    place = {}
    for group, line in enumerate(line for line in lines if 0 in line):
        place.update({point: (group, i) for i, point in enumerate(point for point in line if point)})
    return [[place[point] for point in line] for line in lines if 0 not in line]


def _over_field(groups: int, order: int) -> Rows:
    """Columns x, y, x + y, a x + y, ...: lines of the affine plane, without the whole plane's tables."""
    numbers = field(order)
    x, y = np.divmod(np.arange(order**2), order)
    columns = [x, y] + [numbers.add(numbers.multiply(slope, x), y) for slope in range(1, groups - 1)]
    return np.stack(columns[:groups], axis=1)
