"""Hop classes with switch tiers."""

from __future__ import annotations

import numpy as np

from app.localization.hops import hop_classes
from app.localization.placement import HOP_CLASSES, Place, Placement, layout


def test_without_tiers_they_are_the_plain_ones() -> None:
    for placement in (layout(16, 4), layout(8, 1), layout(6, 6, leaves=3)):
        found = hop_classes(placement)
        assert found.names == HOP_CLASSES
        assert np.array_equal(found.codes, placement.hop_codes)


def test_leaves_are_told_apart_by_where_they_meet() -> None:
    parents = {"l0": "s0", "l1": "s0", "l2": "s1", "l3": "s2", "s0": "core", "s1": "core"}
    places = [Place(f"h{leaf}{rail}", rail=str(rail), leaf=f"l{leaf}") for leaf in range(4) for rail in range(2)]
    found = hop_classes(Placement((*places, Place("h00"), Place("z")), parents))
    names = [found.names[code] for code in found.codes[0]]
    assert names == [
        "same_host",
        "cross_rail",  # under the same leaf
        "cross_leaf",
        "cross_leaf",
        "cross_tier_2",
        "cross_tier_2",
        "cross_tier_2",  # s2 has nothing above it: no lower than that
        "cross_tier_2",
        "same_host",
        "cross_host",  # neither rail nor leaf stated
    ]
    assert np.array_equal(found.codes, found.codes.T)
    assert not found.codes.diagonal().any()


def test_tiers_of_any_depth() -> None:
    depth = 40
    chain = {f"{side}{tier}": f"{side}{tier + 1}" for side in "ab" for tier in range(depth)}
    parents = {**chain, f"a{depth}": "top", f"b{depth}": "top"}
    found = hop_classes(Placement((Place("x", leaf="a0"), Place("y", leaf="b0")), parents))
    assert found.names[found.codes[0, 1]] == f"cross_tier_{depth + 1}"
    assert found.names.index("cross_tier_2") == len(HOP_CLASSES)


def test_a_leaf_below_another_leaf() -> None:
    found = hop_classes(Placement((Place("x", leaf="l"), Place("y", leaf="s")), {"l": "s"}))
    assert found.names[found.codes[0, 1]] == "cross_leaf"
