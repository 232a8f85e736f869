"""Beliefs by intervals are those of a plain table of items x severities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.beliefs import Beliefs

SEVERITIES = 3


@st.composite
def intervals_of(draw: st.DrawFn, items: int) -> list[tuple[int, int, np.ndarray]]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        low = draw(st.integers(0, items - 1))
        high = draw(st.integers(low + 1, items))
        ratios = draw(st.lists(st.floats(-20, 20), min_size=SEVERITIES, max_size=SEVERITIES))
        found.append((low, high, np.array(ratios)))
    return found


@given(items=st.integers(1, 20), data=st.data())
@settings(max_examples=50, deadline=None)
def test_intervals_say_what_a_plain_table_says(items: int, data: st.DataObject) -> None:
    beliefs, table = Beliefs(items, SEVERITIES), np.zeros((items, SEVERITIES))
    for low, high, ratios in data.draw(intervals_of(items)):
        beliefs.update(low, high, ratios)
        table[low:high] += ratios
    excluded = data.draw(st.sets(st.integers(0, items - 1), max_size=items))
    beliefs.excluded[list(excluded)] = True
    kept = [i for i in range(items) if i not in excluded]

    expected = np.log(np.exp(table).mean(axis=1))
    assert beliefs.candidates == len(kept)
    assert beliefs.ratios()[kept] == pytest.approx(expected[kept], abs=1e-9)
    assert np.isneginf(beliefs.ratios()[sorted(excluded)]).all()

    odds = np.exp(expected[kept]) / max(1, len(kept))
    weights, nothing = beliefs.weights()
    assert nothing == pytest.approx(1 / (1 + odds.sum()))
    assert weights[kept] == pytest.approx(odds / (1 + odds.sum()))
    assert weights.sum() + nothing == pytest.approx(1)
    if kept and nothing < 0.999999:
        assert beliefs.evidence() == pytest.approx(math.log(odds.sum()), abs=1e-6)


def test_nothing_is_known_at_first_and_after_forgetting() -> None:
    beliefs = Beliefs(4, 2)
    beliefs.excluded[1] = True
    fresh = beliefs.weights()
    beliefs.update(1, 3, np.array([5.0, -5.0]))
    assert beliefs.weights()[1] != fresh[1]
    beliefs.forget()
    assert beliefs.weights()[1] == fresh[1] == pytest.approx(0.5)
    assert beliefs.weights()[0] == pytest.approx([1 / 6, 0, 1 / 6, 1 / 6])
    assert beliefs.excluded.tolist() == [False, True, False, False]


@given(low=st.integers(0, 5), ratio=st.floats(-500, 500))
@settings(max_examples=50, deadline=None)
def test_no_evidence_is_beyond_numbers(low: int, ratio: float) -> None:
    beliefs = Beliefs(6, 1)
    for _ in range(10):
        beliefs.update(low, 6, np.array([ratio]))
    assert math.isfinite(beliefs.evidence())
    assert np.isfinite(beliefs.weights()[0]).all()


def test_where_everything_is_excluded_nothing_is_slow() -> None:
    beliefs = Beliefs(2, 1)
    beliefs.update(0, 2, np.array([9.0]))
    beliefs.excluded[:] = True
    assert beliefs.weights()[1] == 1
    assert beliefs.evidence() < math.log(0.01)
