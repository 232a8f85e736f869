"""Hop classes with switch tiers: how far apart two ranks are, as fine as the topology says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.localization.placement import HOP_CLASSES, Placement


@dataclass(frozen=True)
class HopClasses:
    """The class of every path.

    Parameters
    ----------
    names : tuple of str
        Names of the classes, the nearest first: those of `HOP_CLASSES`, then ``cross_tier_2``,
        ``cross_tier_3``, ... as far as the topology's switches go.
    codes : ndarray of int, shape (n, n)
        Index into ``names`` of the path u-v; symmetric, 0 on the diagonal.
    """

    names: tuple[str, ...]
    codes: NDArray[np.int16]


def hop_classes(placement: Placement) -> HopClasses:
    """Tell paths that leave their leaf apart by the tier at which their ends meet.

    ``cross_leaf`` paths meet one tier above the leaves, or it is not stated where they meet; the ends of a
    ``cross_tier_2`` path meet no lower than two tiers above, and so on.

    Parameters
    ----------
    placement : Placement
        Where the n ranks sit, with the switches above the leaves.

    Returns
    -------
    HopClasses
        The same as `Placement.hop_codes` where the topology states no switch above the leaves.
    """
    leaves = placement.names("leaf")
    heights = _meeting_heights(placement, leaves)
    number = {leaf: index for index, leaf in enumerate(leaves)}
    at = np.array([number.get(place.leaf or "", 0) for place in placement.places], dtype=np.intp)
    codes = placement.hop_codes.astype(np.int16)
    cross_leaf = HOP_CLASSES.index("cross_leaf")
    crossing = codes == cross_leaf
    codes[crossing] = cross_leaf - 1 + heights[np.ix_(at, at)][crossing]
    tallest = int(heights.max(initial=1))
    return HopClasses((*HOP_CLASSES, *(f"cross_tier_{tier}" for tier in range(2, tallest + 1))), codes)


def _meeting_heights(placement: Placement, leaves: tuple[str, ...]) -> NDArray[np.int16]:
    """Tiers above the leaves at which two leaves meet, at least one; shape (leaves, leaves), at least (1, 1)."""
    chains = [placement.switches(leaf) for leaf in leaves]
    heights = np.ones((max(1, len(leaves)),) * 2, dtype=np.int16)
    for a, one in enumerate(chains):
        for b in range(a):
            heights[a, b] = heights[b, a] = max(1, _height(one, chains[b]))
    return heights


def _height(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Steps up to the lowest switch that both have; the fewest it could be where none is stated."""
    above = {switch: step for step, switch in enumerate(other)}
    for step, switch in enumerate(one):
        if switch in above:
            return max(step, above[switch])
    return min(len(one), len(other))
