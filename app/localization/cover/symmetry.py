"""Points that a rotation moves in cycles: pairs fall into orbits, and one block stands for all its images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.localization.cover.designs import Blocks
from app.localization.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Rotation:
    """``n`` points in cycles of ``length``; what is left over at the end is fixed.

    Parameters
    ----------
    n, length : int
        Point p stands at place ``p % length`` of cycle ``p // length``; length 1 means no symmetry.
    """

    n: int
    length: int

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.n:
            raise SettingsError("rotation", f"cycles of {self.length} among {self.n} points")

    @property
    def turning(self) -> int:
        """The points that are moved: ``0..turning - 1``."""
        return self.n - self.n % self.length

    def image(self, point: int, turns: int) -> int:
        """Where the point is after so many turns."""
        if point >= self.turning:
            return point
        place = point % self.length
        return point - place + (place + turns) % self.length

    def images(self, blocks: Iterable[Sequence[int]]) -> Blocks:
        """All images of all blocks, each once."""
        turned = {
            tuple(sorted(self.image(point, turns) for point in block))
            for block in blocks
            for turns in range(self.length)
        }
        return [list(block) for block in sorted(turned)]

    def pair_orbits(self) -> tuple[list[list[int]], list[dict[int, int]]]:
        """Number the orbits of pairs.

        Returns
        -------
        orbit_of : list of list of int, shape (n, n)
            The orbit of each pair; -1 on the diagonal.
        partners : list of dict of int to int
            For each orbit, points with another point that makes a pair of the orbit: one each way for each pair.
        """
        orbit_of = [[-1] * self.n for _ in range(self.n)]
        partners: list[dict[int, int]] = []
        for a in range(self.n):
            for b in range(a + 1, self.n):
                if orbit_of[a][b] >= 0:
                    continue
                orbit: dict[int, int] = {}
                for turns in range(self.length):
                    x, y = self.image(a, turns), self.image(b, turns)
                    orbit_of[x][y] = orbit_of[y][x] = len(partners)
                    orbit[x], orbit[y] = y, x
                partners.append(orbit)
        return orbit_of, partners

    def class_blocks(self, k: int) -> Blocks:
        """Disjoint blocks of k that the rotation maps to each other, on as many moved points as they can hold.

        k cycles hold a block for each place; cycles that are left over hold blocks of equidistant places, where
        k divides their length. Three or more fixed points that are left over make a block of their own: without a
        rotation it is filled up, with one that would make a block for each turn.
        """
        cycles = self.turning // self.length
        across = cycles - cycles % k if self.length % k else 0
        blocks = [
            [(cycle + i) * self.length + place for i in range(k)]
            for cycle in range(0, across, k)
            for place in range(self.length)
        ]
        if self.length % k == 0:
            step = self.length // k
            blocks += [
                [cycle * self.length + place + i * step for i in range(k)]
                for cycle in range(across, cycles)
                for place in range(step)
            ]
        left = list(range(len(blocks) * k, self.n))
        if 3 <= len(left) < k and (self.length == 1 or left[0] >= self.turning):
            blocks.append(left + list(range(k - len(left)) if self.length == 1 else ()))
        return blocks
