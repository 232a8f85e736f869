"""The healthy level: it drifts, is borrowed where need be, and no slow probe testifies for itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.levels import BORROWED_SIGMA, LevelClass, Levels, lowest_cluster

LOOPS, SHIFT, EXCHANGE = LevelClass("loops"), LevelClass("shift"), LevelClass("exchange")
INSIDE, ACROSS = LevelClass("shift", "same_host"), LevelClass("exchange", "cross_host")


def test_a_slow_probe_that_is_repeated_does_not_testify_for_itself() -> None:
    levels = Levels(0.05)
    for probe in range(1, 5):
        levels.add(SHIFT, probe, 1.0)
    slow = [levels.add(SHIFT, 9, 2.0) for _ in range(40)]
    level = levels.around(slow[-1])
    assert level is not None
    assert level[0] == pytest.approx(1.0)


def test_where_nothing_else_was_read_its_own_repeats_are_all_there_is() -> None:
    levels = Levels(0.05)
    readings = [levels.add(SHIFT, 1, value) for value in (1.0, 1.2)]
    assert levels.around(readings[0]) == pytest.approx((1.2, 0.05**2))
    lonely = Levels(0.05)
    assert lonely.around(lonely.add(SHIFT, 1, 1.0)) is None
    assert lonely.level(LOOPS) is None


@given(drift=st.floats(-0.01, 0.01))
@settings(max_examples=50, deadline=None)
def test_the_level_follows_a_drift(drift: float) -> None:
    levels = Levels(0.05)
    readings = [levels.add(SHIFT, probe, 3 + drift * probe) for probe in range(100)]
    level = levels.around(readings[-1])
    assert level is not None
    assert abs(level[0] - readings[-1].value) < 21 * abs(drift) + 1e-9, "it lags by its memory, not by all of it"
    latest = levels.level(SHIFT)
    assert latest is not None
    assert abs(latest - readings[-1].value) < 21 * abs(drift) + 1e-9


def test_what_is_likely_disturbed_does_not_move_it() -> None:
    levels = Levels(0.05)
    for probe in range(1, 4):
        levels.add(SHIFT, probe, 1.0)
    levels.add(SHIFT, 8, 5.0).clean = 1e-3
    levels.add(SHIFT, 7, 5.0, censored=True)
    level = levels.around(levels.add(SHIFT, 9, 1.0))
    assert level is not None
    assert level[0] == pytest.approx(1.0, abs=0.01)


def test_a_level_is_borrowed_from_the_same_load_on_the_same_kind_of_path() -> None:
    levels = Levels(0.05)
    for probe in range(4):
        levels.add(SHIFT, probe, 1.0)
        levels.add(LOOPS, 10 + probe, 0.2)
        levels.add(ACROSS, 20 + probe, 7.0)
    level = levels.around(levels.add(EXCHANGE, 9, 1.4))
    assert level is not None
    assert level[0] == pytest.approx(1.0)
    assert level[1] > BORROWED_SIGMA**2, "and trusted less"


@pytest.mark.parametrize(
    ("lender", "borrower", "lends"),
    [
        (SHIFT, EXCHANGE, True),
        (EXCHANGE, SHIFT, True),
        (SHIFT, SHIFT, False),
        (LOOPS, SHIFT, False),
        (SHIFT, LOOPS, False),
        (INSIDE, ACROSS, False),
        (LevelClass("shift", "cross_host"), ACROSS, True),
    ],
)
def test_who_lends_to_whom(lender: LevelClass, borrower: LevelClass, lends: bool) -> None:
    assert lender.lends_to(borrower) is lends


def test_own_readings_outweigh_borrowed_ones() -> None:
    levels = Levels(0.05)
    for probe in range(10):
        levels.add(SHIFT, probe, 1.0)
    unsure = levels.add(EXCHANGE, 20, 1.5)
    unsure.clean = 0.5
    level = levels.around(levels.add(EXCHANGE, 21, 1.5))
    assert level is not None
    assert level[0] == pytest.approx(1.5), "one own reading is as sure as a reading is"
    for probe in range(30, 40):
        levels.add(EXCHANGE, probe, 1.5)
    level = levels.around(levels.add(EXCHANGE, 41, 1.5))
    assert level is not None
    assert level[0] == pytest.approx(1.5)


def test_known_levels_are_not_measured() -> None:
    levels = Levels(0.05, {SHIFT: 3.0})
    readings = [levels.add(SHIFT, probe, 4.0) for probe in range(9)]
    assert levels.around(readings[0]) == (3.0, 0.0)
    assert levels.level(SHIFT) == 3.0


def test_more_readings_make_it_surer() -> None:
    levels, variances = Levels(0.1), []
    for probe in range(10):
        reading = levels.add(SHIFT, probe, 1.0)
        level = levels.around(reading)
        variances += [level[1]] if level else []
    assert variances == sorted(variances, reverse=True)
    assert variances[0] == pytest.approx(0.1**2)
    assert variances[-1] < 0.1**2 / 6


@given(slow=st.integers(0, 12), jump=st.floats(0.3, 3))
@settings(max_examples=50, deadline=None)
def test_the_lowest_cluster_is_the_healthy_one_even_where_most_are_slow(slow: int, jump: float) -> None:
    values = np.concatenate([np.linspace(1, 1.05, 4), np.linspace(1 + jump, 1.05 + jump, slow)])
    assert lowest_cluster(values, 0.05).tolist() == [True] * 4 + [False] * slow


def test_levels_are_logarithms() -> None:
    levels = Levels(0.05)
    levels.add(SHIFT, 1, math.log(20))
    levels.add(SHIFT, 2, math.log(80))
    level = levels.level(SHIFT)
    assert level is not None
    assert math.exp(level) == pytest.approx(40, rel=0.05)
