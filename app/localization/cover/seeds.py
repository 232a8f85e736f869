"""The shipped seeds: small covers, and covers with a hole, that a search found.

Where they come from: most came out of simulated annealing over blocks with a prescribed automorphism, a rotation
of most points, by a compiled forerunner of ``anneal`` beside this module; some of k = 4 out of ``anneal`` itself,
with the first class prescribed. For k = 8 those of 70 and more points, and a few of k = 4, are recipes of the
portfolio that polishing made smaller. The first blocks are a class that ``class_first`` found in a long search, or
a constraint solver. Each seed is checked when it is written, and again in every cover that is built from it.

Reading them is the only input of the core: data of the package, read once.
"""

from __future__ import annotations

import json
import lzma
from functools import lru_cache
from importlib.resources import files

from app.localization.cover.designs import Blocks

SeedBlocks = tuple[tuple[int, ...], ...]
SEEDED = (4, 8)  # probe sizes with a file of seeds


@lru_cache(maxsize=len(SEEDED))
def _file(k: int) -> dict[str, dict[str, list[list[int]]]]:
    packed = (files(__package__) / "data" / f"seeds_{k}.json.xz").read_bytes()
    content: dict[str, dict[str, list[list[int]]]] = json.loads(lzma.decompress(packed))
    return content


def seeds(k: int) -> dict[int, SeedBlocks]:
    """Covers by blocks of at most ``k``, by number of points; empty for a k without seeds."""
    if k not in SEEDED:
        return {}
    return {int(n): tuple(map(tuple, blocks)) for n, blocks in _file(k)["covers"].items()}


def hole_sizes(k: int) -> dict[tuple[int, int], int]:
    """Number of blocks of each seed with a hole, by (points, points of the hole)."""
    holes = _file(k)["holes"] if k in SEEDED else {}
    return {_pair(name): len(blocks) for name, blocks in holes.items()}


def hole_blocks(k: int, points: int, hole: int) -> Blocks:
    """Blocks that cover all pairs of ``0..points-1`` but those of the last ``hole`` points."""
    return _file(k)["holes"][f"{points},{hole}"]


def _pair(name: str) -> tuple[int, int]:
    points, hole = name.split(",")
    return int(points), int(hole)
