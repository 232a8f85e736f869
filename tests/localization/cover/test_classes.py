"""Classes: which blocks touch everything first, and what becomes of the order and of short blocks."""

from __future__ import annotations

import numpy as np

from app.localization.cover.classes import class_first, in_classes, padded, touching
from app.localization.cover.designs import affine_lines
from app.localization.cover.hosts import aligned
from app.localization.cover.polish import polished


def test_a_class_is_found_among_shuffled_blocks() -> None:
    lines = affine_lines(3, 4)
    shuffled = [lines[i] for i in np.random.default_rng(3).permutation(len(lines))]
    assert touching(64, 4, shuffled) > 16
    ordered = class_first(64, 4, shuffled)
    assert sorted(ordered) == sorted(lines)
    assert {point for line in ordered[:16] for point in line} == set(range(64))


def test_without_a_class_as_few_blocks_as_touch_everything() -> None:
    plane = [[0, 1, 2], [0, 3, 4], [0, 5, 6], [1, 3, 5], [1, 4, 6], [2, 3, 6], [2, 4, 5]]
    assert touching(7, 3, class_first(7, 3, plane[3:] + plane[:3])) == 3
    triangle = [[0, 1], [0, 2], [1, 2]]
    assert touching(3, 2, class_first(3, 2, triangle)) == 2


def test_short_blocks_are_filled_with_what_is_not_touched_yet() -> None:
    assert touching(6, 3, [[0, 1], [2, 3], [4, 5]]) == 2
    assert padded(6, 3, [[0, 1], [2, 3], [4, 5]]) == [[0, 1, 4], [2, 3, 5], [0, 4, 5]]


def test_blocks_join_the_first_class_they_are_disjoint_from() -> None:
    blocks = [[0, 1], [0, 2], [2, 3], [1, 3], [0, 3], [1, 2]]
    assert in_classes(blocks, 0, 4) == [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]
    # The first two stay; full classes come before those that are not.
    assert in_classes(blocks, 2, 4) == [[0, 1], [0, 2], [0, 3], [1, 2], [2, 3], [1, 3]]


def test_polishing_drops_points_and_joins_what_is_short() -> None:
    # 0-1 twice, 4-5 on its own: the second 0-1 block only needs 0-3 and 1-3, and takes nothing more in.
    blocks = [[0, 1, 2], [0, 1, 2, 3], [4, 5], [5, 4]]
    assert polished(6, 4, blocks) == [[0, 1, 2, 3], [4, 5]]
    assert polished(6, 4, [[0, 1], [2, 3], [4, 5]]) == [[0, 1, 2, 3], [4, 5]]


def test_what_is_left_of_hosts_and_blocks_is_put_together() -> None:
    # Hosts of 3, 2 and 1: the block of three fits the first, the other one spans the rest.
    assert aligned([[0, 2, 4], [1, 3, 5]], 2, [0, 1, 1, 0, 0, 2]) == [[0, 3, 4], [1, 2, 5]]
