"""Even or concentrated."""

from __future__ import annotations

import pytest

from app.selection.distribution import distribution


@pytest.mark.parametrize(
    ("selected", "shape", "gini", "max_over_mean"),
    [
        ({"a": 50, "b": 50}, "even", 0.0, 1.0),
        ({"a": 60, "b": 40}, "even", 0.1, 1.2),
        ({"a": 70, "b": 30}, "concentrated", 0.2, 1.4),
        ({"a": 10, "b": 0, "c": 0, "d": 0}, "single", 0.75, 4.0),
        ({"a": 10}, "single", 0.0, 1.0),
        ({"a": 0, "b": 0}, "none", 0.0, 0.0),
        ({}, "none", 0.0, 0.0),
    ],
)
def test_shapes(selected: dict[str, int], shape: str, gini: float, max_over_mean: float) -> None:
    found = distribution(selected)
    assert found.shape == shape
    assert (found.gini, found.max_over_mean) == pytest.approx((gini, max_over_mean))
    assert sum(found.shares.values()) == pytest.approx(1 if sum(selected.values()) else 0)


def test_shares_are_labelled_as_what_they_are() -> None:
    assert distribution({"a": 1, "b": 2}).to_dict() == {
        "basis": "selected, not wire",
        "shape": "concentrated",
        "shares": {"a": 0.333333, "b": 0.666667},
        "gini": 0.166667,
        "max_over_mean": 1.333333,
    }
