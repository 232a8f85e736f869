"""A part is slow with all of its pieces: readings that one piece explains do not accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.localization.adaptive.doubts import BETTER, Pieces
from app.localization.adaptive.groups import PathSweep, Piece
from app.localization.adaptive.link_sets import link_groups
from app.localization.adaptive.links import LinkGroup, Shared
from app.localization.adaptive.noise import Noise
from app.localization.placement import layout

NOISE = Noise(0.25, 0.2)
EFFECTS = np.log([1.8, 2.5, 4.0])
PLACEMENT = layout(64, 8, leaves=2)


def lead(*tests: tuple[float, tuple[int, ...]]) -> float:
    """Of the part; each test with how many times as long as its reference it took, and the GPUs in it."""
    pieces = Pieces()
    for times, gpus in tests:
        ratios = NOISE.pair_ratios(math.log(times), EFFECTS, NOISE.sigma * math.sqrt(2))
        pieces.add([Piece("gpu", rank) for rank in gpus], ratios)
    return pieces.lead


def test_one_gpu_that_is_in_all_slow_tests_explains_them_better() -> None:
    """Read over HTTP beside other work: GPU 11 was slow, and its rail accused."""
    fast = (1.42, (19, 27, 43, 51)), (1.7, (3, 19, 43, 51))
    slow = (3.6, (11, 19, 35, 59)), (3.1, (11, 27, 35, 51)), (3.2, (3, 11, 35, 43)), (5.2, (11, 19, 43, 51))
    assert lead(*fast, *slow) < 0
    assert lead(*((3.5, gpus) for _, gpus in (*fast, *slow) * 2)) > BETTER


def test_what_is_slow_with_every_gpu_is_the_part() -> None:
    turns = [(2 * i, 2 * i + 1) for i in range(4)]
    assert lead(*((4.0, gpus) for gpus in turns)) > BETTER
    assert lead((4.0, turns[0]), *((1.0, gpus) for gpus in turns[1:])) < -BETTER


def test_without_pieces_there_is_nothing_to_prefer() -> None:
    assert Pieces().lead == math.inf
    assert lead((4.0, ()), (4.0, ())) == math.inf


def groups_of(part: str, below: tuple[int, ...] = ()) -> list[LinkGroup]:
    sweep = PathSweep("cross_host", PLACEMENT.hosts, 8, tiers={"leaf": PLACEMENT.shared["leaf"]})
    labels = {"uplink": PLACEMENT.hosts, "leaf": PLACEMENT.shared["leaf"], "links": tuple(range(64))}[part]
    shared = Shared(part, labels or (), below=below)  # type: ignore[arg-type]
    return link_groups(tuple(range(64)), sweep, shared, np.random.default_rng(3))


def test_pieces_are_the_gpus_of_the_unit_in_a_test_and_what_of_several_is_below_it() -> None:
    (group, *_) = groups_of("uplink", below=tuple(rank // 2 for rank in range(64)))
    test = group.cut(0, 1)
    gpus = {rank for pair in test.shape.pairs for rank in pair} & set(group.units[0])
    wanted = {Piece("gpu", rank) for rank in gpus} | {Piece("below", rank // 2) for rank in gpus}
    assert gpus
    assert group.pieces(0, test) == wanted
    # One NIC a host is the host's uplink again, and a GPU's links have no pieces.
    (group, *_) = groups_of("uplink", below=PLACEMENT.hosts or ())
    assert {piece.kind for piece in group.pieces(0, group.cut(0, 1))} == {"gpu"}
    (group, *_) = groups_of("links")
    assert group.pieces(0, group.cut(0, 1)) == set()


@pytest.mark.parametrize("part", ["uplink", "links"])
def test_nobody_exchanges_with_the_accused_while_others_are_there(part: str) -> None:
    """A host was accused, and as its GPUs were no longer suspected, they were the others' partners."""
    for group in groups_of(part):
        own = set(group.units[0])
        others = {
            rank for rank in range(64) if rank not in own and PLACEMENT.hosts[rank] != PLACEMENT.hosts[min(own)]
        }
        leaf = {rank for rank in others if (rank < 32) == (min(own) < 32)}
        accused = set(sorted(leaf)[:8])
        group.accused, group.suspected = accused, leaf - accused
        for _ in range(40):
            ends = {rank for pair in group.cut(0, 1).shape.pairs for rank in pair}
            assert not ends & accused
        group.accused, group.suspected = leaf, set()
        assert {rank for pair in group.cut(0, 1).shape.pairs for rank in pair} & leaf
