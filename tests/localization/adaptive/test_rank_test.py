"""The rank test, against values worked out by hand and against every order there is."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.examiner import BY_CHANCE
from app.localization.adaptive.rank_test import probability_by_chance


@pytest.mark.parametrize(
    ("suspect", "reference", "expected"),
    [
        ([2], [1], 1 / 2),
        ([1], [2], 1),
        ([3, 4], [1, 2], 1 / 6),
        ([2, 4], [1, 3], 2 / 6),  # 3 of 4 comparisons won: so the orders with 3 or 4
        ([5, 6, 7], [1, 2, 3], 1 / 20),
        ([1], [1], 1),  # a tie is no win
        ([2, 2], [1, 2], 4 / 6),
        ([7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6], 1 / 924),
    ],
)
def test_by_hand(suspect: list[float], reference: list[float], expected: float) -> None:
    assert probability_by_chance(suspect, reference) == pytest.approx(expected)


@given(m=st.integers(1, 5), n=st.integers(1, 5), data=st.data())
@settings(max_examples=50, deadline=None)
def test_by_every_order(m: int, n: int, data: st.DataObject) -> None:
    """The share of all orders in which the suspect wins at least as often."""
    places = range(m + n)
    seen = data.draw(st.permutations(list(places)))[:m]

    def wins(chosen: list[int] | tuple[int, ...]) -> int:
        return sum(a > b for a in chosen for b in places if b not in chosen)

    orders = [wins(chosen) for chosen in combinations(places, m)]
    expected = sum(count >= wins(seen) for count in orders) / len(orders)
    others = [place for place in places if place not in seen]
    assert probability_by_chance(seen, others) == pytest.approx(expected)


def test_six_pairs_are_needed_even_when_every_reading_is_higher() -> None:
    chances = [probability_by_chance(range(10, 10 + n), range(n)) for n in (4, 5)]
    assert chances[1] == pytest.approx(1 / 252)
    assert chances[0] > BY_CHANCE
    assert probability_by_chance(range(10, 16), range(6)) < BY_CHANCE < chances[1]
