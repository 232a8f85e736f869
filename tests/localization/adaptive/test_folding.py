"""One part in the place of its pieces."""

from __future__ import annotations

from app.localization.adaptive.found import Found
from app.localization.adaptive.links import Part
from app.localization.components import group_of
from app.localization.strategies.folding import Units, equal_parts, fold

UNITS: Units = {
    "nic": [(0, 1), (2, 3), (4, 5), (6, 7)],
    "uplink": [(0, 1, 2, 3), (4, 5, 6, 7)],
    "fabric": [(0, 1, 2, 3), (4, 5, 6, 7)],
    "leaf": [(0, 1, 2, 3), (4, 5, 6, 7)],
}


def found(*ranks: int, part: Part | None = "links", number: int = 1, slowdown: float = 2.0) -> Found:
    return Found(group_of(ranks), 9.0 - number, slowdown, False, (number, 90), (80, 90), part)


def folded(*some: Found, hops: str = "cross_host", slow: frozenset[int] = frozenset()) -> dict[str, str | None]:
    ways = {one.component: hops for one in some if one.part is not None}
    return {str(one.component): one.part for one in fold(some, ways, UNITS, slow)}


def test_all_of_a_part_is_the_part_and_less_is_not() -> None:
    assert folded(found(4), found(5, number=2)) == {"group:4-5": "nic"}
    assert folded(found(4), found(6)) == {"gpu:4": "links", "gpu:6": "links"}
    assert folded(found(4)) == {"gpu:4": "links"}


def test_pieces_fold_step_by_step_and_what_else_is_slow_stays() -> None:
    some = [found(0), found(1), found(2, 3, part="nic"), found(6), found(7, part=None)]
    assert folded(*some) == {"group:0-1-2-3": "uplink", "gpu:6": "links", "gpu:7": None}


def test_a_slow_gpu_of_a_part_need_not_be_among_the_pieces() -> None:
    some = [found(0), found(1), found(2), found(3, part=None)]
    assert folded(*some, slow=frozenset({3})) == {"group:0-1-2": "uplink", "gpu:3": None}


def test_sends_within_a_host_are_its_fabric() -> None:
    some = [found(rank) for rank in (4, 5, 6, 7)]
    assert folded(*some, hops="same_host") == {"group:4-5-6-7": "fabric"}


def test_evidence_of_the_pieces_is_the_evidence_of_the_part() -> None:
    pieces = [found(4, number=1, slowdown=2.0), found(5, number=3, slowdown=4.0)]
    (one,) = fold(pieces, dict.fromkeys((p.component for p in pieces), "cross_host"), UNITS, frozenset())
    assert (one.log_odds, one.slowdown, one.accusing, one.acquitting) == (6.0, 3.0, (1, 3, 90), (80,))


def test_equal_parts_have_the_same_gpus() -> None:
    assert equal_parts(found(4, 5, 6, 7, part="uplink"), "cross_host", UNITS) == ["leaf"]
    assert equal_parts(found(4, 5, part="nic"), "cross_host", UNITS) == []
    assert equal_parts(found(4, 5, 6, 7, part="fabric"), "same_host", UNITS) == []
    assert equal_parts(found(4, part="uplink"), "cross_host", {"nic": [(4,)]}) == ["links", "nic"]
