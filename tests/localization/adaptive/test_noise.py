"""Likelihoods of readings: the slower, the more they say for a fault, and never more than can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.noise import BURST_LOG, BURST_RATE, LEARNT_BURST_RATE, LEAST_SIGMA, Noise, log_mean

EFFECTS = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
noises = st.builds(Noise, st.floats(LEAST_SIGMA, 0.5), st.sampled_from([1e-6, BURST_RATE, LEARNT_BURST_RATE]))
several_effects = st.lists(st.floats(1e-3, 8), min_size=2, max_size=30).map(np.array)
residuals = st.floats(-50, 50)


@given(noise=noises, effects=several_effects, residual=residuals, spread=st.floats(1.0, 5.0))
@settings(max_examples=50, deadline=None)
def test_no_reading_gives_more_or_less_than_a_number(
    noise: Noise, effects: np.ndarray, residual: float, spread: float
) -> None:
    wide = noise.sigma * spread
    found = [noise.ratios(residual, effects, wide, censored=censored) for censored in (False, True)]
    found.append(noise.pair_ratios(residual, effects, wide))
    assert all(ratios.shape == effects.shape and np.isfinite(ratios).all() for ratios in found)
    assert 0 <= noise.undisturbed(residual, wide) <= 1


@pytest.mark.parametrize("burst", [1e-6, BURST_RATE, LEARNT_BURST_RATE])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.1])
def test_a_reading_cut_off_between_level_and_effect_speaks_for_the_fault(burst: float, sigma: float) -> None:
    noise = Noise(sigma, burst)
    for place, effect in enumerate(EFFECTS):
        cuts = [-5 * sigma, effect / 4, effect / 2, effect]
        said = [float(noise.ratios(x, EFFECTS, sigma, censored=True)[place]) for x in cuts]
        assert said[0] == pytest.approx(0, abs=0.01), "before anything is due it says nothing"
        assert min(said[1:]) > 0.05


@given(x=st.floats(0, 0.39), step=st.floats(0, 0.05))
@settings(max_examples=50, deadline=None)
def test_without_bursts_a_slower_reading_says_more_for_every_fault_above_it(x: float, step: float) -> None:
    noise = Noise(0.05, 0.0)
    above = x + step < EFFECTS
    before, after = noise.ratios(x, EFFECTS, 0.05), noise.ratios(x + step, EFFECTS, 0.05)
    assert (after[above] >= before[above] - 1e-9).all()


def test_a_reading_at_the_level_speaks_against_every_fault_and_one_at_its_effect_for_it() -> None:
    noise = Noise(0.02)
    assert (noise.ratios(0.0, EFFECTS, 0.02) < -4).all()
    for place, effect in enumerate(EFFECTS):
        ratios = noise.ratios(float(effect), EFFECTS, 0.02)
        assert ratios.argmax() == place
        assert ratios[place] > 2


def test_a_reading_above_the_largest_effect_counts_as_one_of_that() -> None:
    noise = Noise(0.05)
    for of in (noise.ratios, noise.pair_ratios):
        assert of(1.6, EFFECTS, 0.05) == pytest.approx(of(9.0, EFFECTS, 0.05))
        assert of(9.0, EFFECTS, 0.05).argmax() == len(EFFECTS) - 1


def test_a_reading_cut_off_below_the_level_says_nothing_much() -> None:
    assert np.abs(Noise(0.05).ratios(-2.0, EFFECTS, 0.05, censored=True)).max() < 0.05


def test_one_burst_does_not_convince_where_bursts_are_expected() -> None:
    """A reading of 2x says the less, the more frequent bursts are, and never outweighs two fast ones."""
    rare, frequent = (Noise(0.05, burst).ratios(math.log(2), EFFECTS, 0.05) for burst in (0.001, 0.2))
    assert frequent.max() < rare.max() - 3
    assert log_mean(frequent + 2 * Noise(0.05, 0.2).ratios(0.0, EFFECTS, 0.05)) < 0


@given(difference=st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_pairs_weigh_bursts_in_the_reference_as_those_in_the_suspect(difference: float) -> None:
    noise = Noise(0.05)
    assert noise._pair(np.array(difference), 0.07) == pytest.approx(noise._pair(np.array(-difference), 0.07))


def test_the_density_is_one_in_all() -> None:
    """But for the floor, which keeps what nothing explains from deciding."""
    x = np.linspace(-1, BURST_LOG, 200_001)
    total = float(np.trapezoid(Noise(0.05).density(x, 0.05), x))
    assert total == pytest.approx(1 + 1e-4 * (1 + BURST_LOG), abs=1e-3)


def test_what_is_far_above_the_level_was_disturbed() -> None:
    noise = Noise(0.05)
    assert noise.undisturbed(-0.1, 0.05) > 0.99
    assert noise.undisturbed(0.0, 0.05) > 0.98
    assert noise.undisturbed(0.5, 0.05) < 1e-6


def test_without_noise_there_are_no_bursts_but_clocks_still_round() -> None:
    assert Noise.of(0.0) == Noise(LEAST_SIGMA, 1e-6)
    assert Noise.of(0.05) == Noise(0.05, BURST_RATE)


@given(values=st.lists(st.floats(-700, 700), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_the_mean_of_ratios_lies_between_them(values: list[float]) -> None:
    mean = log_mean(np.array(values))
    assert max(values) - math.log(len(values)) - 1e-9 <= mean <= max(values) + 1e-9
