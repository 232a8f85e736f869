"""Search for the seeds: simulated annealing over blocks with a prescribed rotation.

    python -m app.localization.cover.anneal --n 16 --k 4 --rotation 5 --blocks 20 --seed 1
    python -m app.localization.cover.anneal --n 48 --k 4 --rotation 12 --class-first --out seeds_4.json.xz

A step replaces one point of one block, half of the time so that a pair becomes covered that is not; the price is
the number of pairs that no block contains. With ``--rotation m`` a block stands for its m images, so there are m
times fewer blocks to choose. ``--class-first`` prescribes the first class, ``--hole w`` forgives the pairs of the
last w points. Nothing is written that has not been checked; a seed in a file is only replaced by a smaller one, or
by one of the same size that touches all points with fewer first blocks.

Two to four hundred thousand steps a second. At the bound, the examples above take seconds, n = 29 a second without
any rotation; above 50 points it depends on a rotation that fits, and on the number of tries.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.localization.cover.bounds import CoverError, missing_pair, schonheim_bound
from app.localization.cover.classes import class_first, touching
from app.localization.cover.designs import Blocks
from app.localization.cover.symmetry import Rotation
from app.localization.errors import SettingsError

HOT, COLD = 0.6, 0.15  # temperatures, in orbits of pairs
AIMED = 0.5  # share of steps that cover an open pair
BATCH = 4096  # random numbers drawn at once


class Annealing:
    """One search.

    Parameters
    ----------
    rotation : Rotation
        The points, and the symmetry that the cover has.
    k, count : int
        Points of a block, and number of blocks up to rotation.
    given : list of list of int
        Blocks that are in the cover already.
    hole : int
        The last so many points, whose pairs need not be covered.
    seed : int
        Of the random numbers.
    """

    def __init__(self, rotation: Rotation, k: int, count: int, *, given: Blocks, hole: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._points = rotation.n
        self._orbit, self._partners = rotation.pair_orbits()
        pairs = np.array(self._orbit)[np.triu_indices(rotation.n, 1)]
        self._weight = (np.bincount(pairs) / rotation.length).tolist()
        self._times = [0] * len(self._partners)
        self._open: list[int] = []  # orbits that no block holds, and where in the list each stands
        self._place = [0] * len(self._partners)
        self._forgiven = list(range(rotation.n - hole, rotation.n))
        self.blocks = [self._rng.permutation(rotation.n)[:k].tolist() for _ in range(count)]
        for block in (*given, self._forgiven, *self.blocks):
            for i, a in enumerate(block):
                for b in block[i + 1 :]:
                    self._times[self._orbit[a][b]] += 1
        for orbit, times in enumerate(self._times):
            if not times:
                self._leave_open(orbit)

    def run(self, steps: int) -> bool:
        """Anneal; whether every pair is covered at the end (``blocks`` then holds the cover, up to rotation)."""
        batches = -(-steps // BATCH)
        for i in range(batches):
            self._steps(HOT * (COLD / HOT) ** (i / batches))
            if not self._open:
                break
        return not self._open

    def _steps(self, temperature: float) -> None:
        """One batch at one temperature; left as soon as every pair is covered."""
        rng, blocks = self._rng, self.blocks
        which = rng.integers(len(blocks), size=BATCH).tolist()
        where = rng.integers(len(blocks[0]), size=BATCH).tolist()
        points = rng.integers(self._points, size=BATCH).tolist()
        chances = rng.random(BATCH).tolist()
        allowed = (-temperature * np.log(1 - rng.random(BATCH))).tolist()
        for number, place, point, chance, most in zip(which, where, points, chances, allowed, strict=True):
            if not self._open:
                return
            if chance < AIMED:
                self._step(*self._aim(number, place, chance / AIMED), most)
            else:
                self._step(blocks[number], place, point, most)

    def _step(self, block: list[int], place: int, joins: int, most: float) -> None:
        """Replace a point, and take that back when it costs more than the chance of this step allows."""
        if joins not in block:
            leaves = block[place]
            if self._exchange(block, place, joins) > most:
                self._exchange(block, place, leaves)

    def _aim(self, number: int, place: int, chance: float) -> tuple[list[int], int, int]:
        """An exchange that covers an open pair: the next block that holds one end of it gets the other."""
        partners = self._partners[self._open[int(chance * len(self._open))]]
        for offset in range(len(self.blocks)):
            block = self.blocks[number - offset]
            for i, point in enumerate(block):
                if point in partners:
                    return block, (place if place != i else i - 1), partners[point]
        return self.blocks[number], place, self.blocks[number][place]  # nothing to do: no block holds an end

    def _exchange(self, block: list[int], place: int, joins: int) -> float:
        """Replace a point; how many more pairs are open, in orbits of full length."""
        leaves = block[place]
        without, within, times = self._orbit[leaves], self._orbit[joins], self._times
        price = 0.0
        for other in block:
            if other != leaves:
                orbit = without[other]
                times[orbit] -= 1
                if not times[orbit]:
                    price += self._weight[orbit]
                    self._leave_open(orbit)
        block[place] = joins
        for other in block:
            if other != joins:
                orbit = within[other]
                if not times[orbit]:
                    price -= self._weight[orbit]
                    self._close(orbit)
                times[orbit] += 1
        return price

    def _leave_open(self, orbit: int) -> None:
        self._place[orbit] = len(self._open)
        self._open.append(orbit)

    def _close(self, orbit: int) -> None:
        last = self._open.pop()
        if last != orbit:
            self._open[self._place[orbit]] = last
            self._place[last] = self._place[orbit]


def search(
    rotation: Rotation, k: int, count: int, *, hole: int = 0, class_first: bool = False, steps: int, seed: int
) -> Blocks | None:
    """A cover of ``count`` blocks or fewer, or None when these steps found none.

    Parameters
    ----------
    rotation : Rotation
        The points and the prescribed symmetry.
    k, count : int
        Points of a block, and blocks wanted; what is not a multiple of the rotation's length is left unused.
    hole : int
        The pairs of the last so many points need not be covered.
    class_first : bool
        Prescribe disjoint blocks that touch all points but fewer than k.
    steps, seed : int
        Length of the search, in whole batches; and where its random numbers start.
    """
    given = rotation.class_blocks(k) if class_first else []
    free = (count - len(given)) // rotation.length
    if free < 1:
        raise SettingsError("blocks", f"{count} blocks leave none to choose with this rotation")
    annealing = Annealing(rotation, k, free, given=given, hole=hole, seed=seed)
    if not annealing.run(steps):
        return None
    blocks = given + [block for block in rotation.images(annealing.blocks) if block not in given]
    return blocks if not uncovered(rotation.n, blocks, hole) else None


def uncovered(n: int, blocks: Blocks, hole: int) -> bool:
    """Whether a pair outside the hole is in no block."""
    return missing_pair([*blocks, list(range(n - hole, n))] if hole else blocks, n) is not None


def better(n: int, k: int, found: Blocks, known: Blocks | None) -> bool:
    """Whether a seed is worth keeping: fewer blocks, or as many and a shorter first class."""
    if known is None or len(found) != len(known):
        return known is None or len(found) < len(known)
    return touching(n, k, class_first(n, k, found)) < touching(n, k, known)


def keep(path: Path, n: int, k: int, blocks: Blocks, hole: int) -> bool:
    """Put a seed into a file of seeds if it is valid and better than what is there; whether it was.

    Raises
    ------
    CoverError
        When the blocks are not a cover: the file is left as it is.
    """
    if any(len(block) > k or len(set(block)) < len(block) for block in blocks) or uncovered(n, blocks, hole):
        raise CoverError(f"not a cover of {n} points by blocks of {k} with a hole of {hole}")
    content = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {"covers": {}, "holes": {}}
    kind, name = ("holes", f"{n},{hole}") if hole else ("covers", str(n))
    if not better(n, k, blocks, content[kind].get(name)):
        return False
    content[kind][name] = blocks if hole else class_first(n, k, blocks)
    path.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9))
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Search for one cover; print it, or put it into a file of seeds."""
    options = _parser().parse_args(arguments)
    n, k, hole = options.n, options.k, options.hole
    found = search(
        Rotation(n, options.rotation),
        k,
        options.blocks or schonheim_bound(n, k),
        hole=hole,
        class_first=options.class_first,
        steps=options.steps,
        seed=options.seed,
    )
    if found is None:
        print("nothing found: another seed, more steps, another rotation or more blocks", file=sys.stderr)  # noqa: T201
        return 1
    if options.out is None:
        print(json.dumps(found))  # noqa: T201
    else:
        kept = keep(options.out, n, k, found, hole)
        print(f"{len(found)} blocks: {'kept' if kept else 'no better than the seed there'}")  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.localization.cover.anneal", description="Search a seed.")
    parser.add_argument("--n", type=int, required=True, help="points")
    parser.add_argument("--k", type=int, required=True, help="points of a block")
    parser.add_argument("--blocks", type=int, help="blocks wanted; default: the Schonheim bound")
    parser.add_argument("--rotation", type=int, default=1, help="length of the cycles of a prescribed rotation")
    parser.add_argument("--class-first", action="store_true", help="prescribe the first parallel class")
    parser.add_argument("--hole", type=int, default=0, help="pairs of the last so many points are not needed")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the search")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers")
    parser.add_argument("--out", type=Path, help="file of seeds to add to, .json.xz; default: print the blocks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
