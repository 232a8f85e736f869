"""Costs of probes and the effect of faults: the formulas of dilution and their inverses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.adaptive.costs import Costs, certified_effect
from app.localization.errors import SettingsError

costs = st.builds(
    Costs,
    fixed_ms=st.floats(1, 100),
    compute_ms=st.floats(1e-3, 10),
    path_ms=st.floats(1e-3, 10),
    sigma=st.floats(0, 1),
)


def test_a_worked_example() -> None:
    """20 ms fixed, 4 sequences of 1 ms compute and 2 ms path: 32 ms; a path 3x slow among 2 adds half of 2 x 8."""
    example = Costs(fixed_ms=20, compute_ms=1, path_ms=2)
    assert example.healthy_ms(4, over_paths=True) == 32
    assert example.healthy_ms(4, over_paths=False) == 24
    assert math.exp(example.path_effect(3, 4, 2, "serial")) == pytest.approx((32 + 2 * 4) / 32)
    assert math.exp(example.path_effect(3, 4, 2, "shared")) == pytest.approx((32 + 4) / 32)
    assert example.path_effect(3, 4, 3, "shared") == 0, "the slow one hides among three that share the link"
    assert math.exp(example.gpu_effect(2, 4)) == pytest.approx((24 + 4) / 24)
    assert math.exp(example.delay_effect(16, 4)) == pytest.approx(1.5)


def test_what_contains_a_fault_shows_it_whole_in_the_binary_model() -> None:
    assert math.exp(Costs().path_effect(2, 100, 50, "undiluted")) == pytest.approx(2)


@pytest.mark.parametrize("transport", ["serial", "shared", "undiluted"])
@given(costs=costs, tokens=st.integers(1, 5000), r=st.integers(1, 20), effect=st.floats(0.01, 2))
def test_the_smallest_slowdown_has_just_the_effect(
    transport: str, costs: Costs, tokens: int, r: int, effect: float
) -> None:
    slowdown = costs.smallest_path(effect, tokens, r, transport)  # type: ignore[arg-type]
    assert costs.path_effect(slowdown, tokens, r, transport) == pytest.approx(effect)  # type: ignore[arg-type]
    assert costs.gpu_effect(costs.smallest_gpu(effect, tokens), tokens) == pytest.approx(effect)
    assert costs.delay_effect(costs.smallest_delay_ms(effect, tokens), tokens) == pytest.approx(effect)


@given(costs=costs, tokens=st.integers(1, 5000), r=st.integers(1, 20), slowdown=st.floats(1, 100))
def test_sharing_a_link_never_shows_more_than_taking_turns(
    costs: Costs, tokens: int, r: int, slowdown: float
) -> None:
    serial, shared = (costs.path_effect(slowdown, tokens, r, t) for t in ("serial", "shared"))  # type: ignore[arg-type]
    assert shared <= serial + 1e-12
    if r == 1:
        assert shared == pytest.approx(serial)


def test_four_readings_halve_what_can_be_told_from_noise() -> None:
    assert certified_effect(0.05, 1) == pytest.approx(2 * 2.3263 * 0.05)
    assert certified_effect(0.05, 4) == pytest.approx(certified_effect(0.05, 1) / 2)


@pytest.mark.parametrize(
    ("field", "value"), [("fixed_ms", 0), ("compute_ms", -1), ("path_ms", math.nan), ("sigma", math.inf)]
)
def test_costs_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(SettingsError) as refused:
        Costs(**{field: value})
    assert refused.value.field == field


def test_where_nothing_is_sent_over_paths_no_slow_one_can_be_seen() -> None:
    assert Costs(path_ms=0).smallest_path(0.2, 10, 1, "serial") == math.inf
    assert Costs(compute_ms=0).smallest_gpu(0.2, 10) == math.inf
