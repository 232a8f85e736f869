"""Recipes: how a cover of n points is put together from designs and from covers of fewer points.

Each recipe knows which pieces it needs; ``portfolio`` decides which recipe is the cheapest. Blocks may be
shorter than k. A recipe puts first the blocks it expects to touch every point once.

Sources: Colbourn and Dinitz (eds.), Handbook of Combinatorial Designs, 2nd ed. (2007), VI.11 (coverings) and
its part II for the spaces. Recipes over transversal designs stand in ``groups``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from app.localization.cover.classes import class_order
from app.localization.cover.designs import Blocks, affine_lines, projective_lines


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a recipe is asked for: a cover of ``0..n-1`` by blocks of at most ``k``.

    Attributes
    ----------
    n, k : int
        Points, and points of a block.
    piece : callable
        ``piece(v)`` gives a cover of ``0..v-1`` with its first class in front, which must not be changed.
    """

    n: int
    k: int
    piece: Callable[[int], Blocks]


class Recipe(Protocol):
    """One way to build a cover."""

    @property
    def method(self) -> str:
        """The recipe's name."""
        ...

    def build(self, wanted: Wanted, /) -> Blocks:
        """Blocks that cover every pair of points."""
        ...


@dataclass(frozen=True, slots=True)
class Single:
    """All points in one block."""

    method: ClassVar[str] = "single"

    def build(self, wanted: Wanted, /) -> Blocks:
        """One block."""
        return [list(range(wanted.n))]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every pair on its own: the only cover by blocks of two."""

    method: ClassVar[str] = "pairs"

    def build(self, wanted: Wanted, /) -> Blocks:
        """The rounds of a tournament in which everybody plays everybody (circle method)."""
        players = wanted.n + wanted.n % 2  # an odd number plays against nobody once
        turning = players - 1
        rounds = [
            [[turning, i], *([(i + j) % turning, (i - j) % turning] for j in range(1, players // 2))]
            for i in range(turning)
        ]
        return [block for games in rounds for block in games if max(block) < wanted.n]


@dataclass(frozen=True, slots=True)
class Given:
    """A cover found by search: a shipped seed, or the greedy's for few points."""

    blocks: tuple[tuple[int, ...], ...]
    method: str = "seed"

    def build(self, _wanted: Wanted, /) -> Blocks:
        """As it was found."""
        return [list(block) for block in self.blocks]


@dataclass(frozen=True, slots=True)
class Affine:
    """The lines of an affine space over a field of order k."""

    dimension: int
    method: ClassVar[str] = "affine"

    def build(self, wanted: Wanted, /) -> Blocks:
        """Lines by direction: every direction is a parallel class."""
        return affine_lines(self.dimension, wanted.k)


@dataclass(frozen=True, slots=True)
class Projective:
    """The lines of a projective space over a field of order k - 1."""

    dimension: int
    method: ClassVar[str] = "projective"

    def build(self, wanted: Wanted, /) -> Blocks:
        """Lines, a spread first where there is one."""
        return projective_lines(self.dimension, wanted.k - 1)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A cover of more points, without the points that are too many."""

    larger: int
    method: ClassVar[str] = "deletion"

    def build(self, wanted: Wanted, /) -> Blocks:
        """Those points go that only the last blocks of the first class touch."""
        blocks = wanted.piece(self.larger)
        return restricted(blocks, class_order(blocks)[: wanted.n])


@dataclass(frozen=True, slots=True)
class BlowUp:
    """Every point of a cover by smaller blocks stands for several points."""

    copies: int
    method: ClassVar[str] = "blow-up"

    def build(self, wanted: Wanted, /) -> Blocks:
        """Point p becomes copies * p, copies * p + 1, ...; the portfolio gives pieces of ``k / copies``."""
        n, copies = wanted.n, self.copies
        blocks = wanted.piece(-(-n // copies))
        return [
            [point for p in block for point in range(copies * p, min(copies * (p + 1), n))] for block in blocks
        ]


def restricted(blocks: Blocks, kept: list[int]) -> Blocks:
    """The blocks on the kept points only, renumbered in the order given; what no longer holds a pair goes."""
    number = {point: i for i, point in enumerate(kept)}
    cut = ([number[point] for point in block if point in number] for block in blocks)
    return [block for block in cut if len(block) > 1]
