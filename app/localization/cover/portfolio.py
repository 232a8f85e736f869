"""Which recipe is the cheapest for each number of points: dynamic programming over all of them."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

from app.localization.cover.bounds import MAX_GPUS
from app.localization.cover.classes import class_first, touching
from app.localization.cover.designs import Blocks, most_groups
from app.localization.cover.fields import is_prime_power
from app.localization.cover.greedy import greedy_cover
from app.localization.cover.groups import Transversal, Wilson
from app.localization.cover.recipes import (
    Affine,
    BlowUp,
    Deletion,
    Given,
    Pairs,
    Projective,
    Recipe,
    Single,
    Wanted,
)
from app.localization.cover.seeds import SEEDED, SeedBlocks, hole_sizes, seeds

LARGEST = MAX_GPUS + 40  # covers of more points than are asked for, to delete some
GREEDY_PIECES = 48  # points up to which the greedy's covers are pieces, for a k without seeds
HOLE_SURPLUS = 2  # ordinary points that a seed with a hole may have too many
TRIED = 4  # recipes of equal cost that are compared by their first class

Offer = tuple[int, Callable[..., Recipe], tuple[Any, ...]]  # cost, recipe and its arguments


class Portfolio:
    """The cheapest recipe for covers of 1..``LARGEST`` points by blocks of ``k``, 2..16."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._found = _found_covers(k)
        self._holes = hole_sizes(k)
        self._sizes = [size for size in range(2, LARGEST // (k - 1) + 1) if most_groups(size) >= k > 2]
        self._commons = sorted({*range(2 * k + 1), *(hole for _, hole in self._holes)})
        self._cost = [0, 0] + [1] * (k - 1) + [sys.maxsize] * (LARGEST - k)
        self._recipes: list[list[Recipe]] = [[Single()] for _ in range(LARGEST + 1)]
        for offers in (self._offers_alone, self._offers_with_pieces):
            for n in range(k + 1, LARGEST + 1):
                for cost, design, arguments in offers(n):
                    if cost <= self._cost[n]:
                        self._take(n, cost, design(*arguments))
            self._delete()

    def cost(self, n: int) -> int:
        """Blocks that the cheapest recipes for ``n`` points take."""
        return self._cost[n]

    def build(self, n: int) -> tuple[Blocks, str]:
        """A cover of ``0..n-1``, and the method.

        Of the cheapest recipes the first whose ``ceil(n / k)`` first blocks touch all points; or else the one that
        needs the fewest for that. Blocks have at most k points.
        """
        k = self._k
        tried = []
        for recipe in self._recipes[n][:TRIED]:
            smaller = k // recipe.copies if isinstance(recipe, BlowUp) else k
            blocks = class_first(n, k, recipe.build(Wanted(n, k, partial(_piece, smaller))))
            tried.append((touching(n, k, blocks), blocks, recipe.method))
            if tried[-1][0] == -(-n // k):
                break
        _, blocks, method = min(tried, key=lambda built: built[0])
        return blocks, method

    def _delete(self) -> None:
        """A cover of n + 1 points is one of n points."""
        for n in range(LARGEST - 1, self._k, -1):
            if self._cost[n + 1] <= self._cost[n]:
                larger = self._recipes[n + 1][0]
                self._take(n, self._cost[n + 1], larger if isinstance(larger, Deletion) else Deletion(n + 1))

    def _take(self, n: int, cost: int, recipe: Recipe) -> None:
        if cost < self._cost[n]:
            self._cost[n] = cost
            self._recipes[n].clear()
        if recipe not in self._recipes[n]:
            self._recipes[n].append(recipe)

    def _offers_with_pieces(self, n: int) -> Iterator[Offer]:
        yield from self._transversals(n)
        yield from self._wilson(n)
        for copies in range(2, self._k // 2 + 1):
            if self._k % copies == 0:
                yield portfolio(self._k // copies).cost(-(-n // copies)), BlowUp, (copies,)

    def _offers_alone(self, n: int) -> Iterator[Offer]:
        k = self._k
        if k == 2:
            yield n * (n - 1) // 2, Pairs, ()
        if n in self._found:
            yield len(self._found[n]), Given, (self._found[n], "seed" if k in SEEDED else "greedy")
        lines = n * (n - 1) // (k * (k - 1))
        for dimension in range(2, MAX_GPUS.bit_length()):
            if n == k**dimension and is_prime_power(k):
                yield lines, Affine, (dimension,)
            if n * (k - 2) == (k - 1) ** (dimension + 1) - 1 and is_prime_power(k - 1):
                yield lines, Projective, (dimension,)

    def _transversals(self, n: int) -> Iterator[Offer]:
        k = self._k
        for common in self._commons:
            for size in self._sizes_between(-(-(n - common) // k), (n - common) // (k - 1)):
                last = n - common - (k - 1) * size
                if size + common >= n:
                    continue
                groups = [size + common] * (k - 1) + [last + common] * (last > 0)
                yield size**2 + self._filled(groups, common), Transversal, (size, last, common)
                for points in range(size + common, size + common + HOLE_SURPLUS + 1):
                    if (points, common) in self._holes:
                        holed = (len(groups) - 1) * self._holes[points, common]
                        cost = size**2 + holed + self._cost[groups[-1]]
                        yield cost, Transversal, (size, last, common, points)

    def _wilson(self, n: int) -> Iterator[Offer]:
        k, weight = self._k, self._k - 1
        if not (is_prime_power(k) and is_prime_power(weight)):
            return
        for common in range(n % weight, 2 * k + 1, weight):  # the rest of the points come in bundles
            bundles = (n - common) // weight
            for size in self._sizes_between(-(-bundles // (k + 1)), bundles // k):
                if most_groups(size) <= k:
                    continue
                last = bundles - k * size
                groups = [weight * size + common] * k + [weight * last + common] * (last > 0)
                joining = size * (size - last) * weight**2 + size * last * (k**2 - 1)
                yield joining + self._filled(groups, common), Wilson, (size, last, common)

    def _sizes_between(self, least: int, most: int) -> list[int]:
        return self._sizes[bisect_left(self._sizes, least) : bisect_right(self._sizes, most)]

    def _filled(self, groups: list[int], common: int) -> int:
        """Blocks of the pieces; k common points make one block, which is needed once."""
        total = sum(self._cost[points] for points in groups)
        return total - (len(groups) - 1) * (common == self._k)


def _found_covers(k: int) -> dict[int, SeedBlocks]:
    """Covers that a search found: the seeds, or else the greedy's for few points."""
    if k in SEEDED:
        return seeds(k)
    return {n: greedy_cover(n, k) for n in range(k + 1, GREEDY_PIECES + 1)} if k > 2 else {}


@lru_cache(maxsize=64)
def _piece(k: int, n: int) -> Blocks:
    """A cover as a part of larger ones: shared, so not to be changed."""
    return portfolio(k).build(n)[0]


@lru_cache(maxsize=16)
def portfolio(k: int) -> Portfolio:
    """The portfolio for one probe size, made once."""
    return Portfolio(k)
