"""Costs and noise from readings: known ones are recovered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.calibration import LEAST_SIGMA, loop_costs, scatter, with_paths
from app.localization.adaptive.costs import Costs


@given(
    fixed=st.floats(0.1, 100),
    compute=st.floats(0, 1),
    over_path=st.floats(0, 1),
    loops=st.integers(2, 2000),
    load=st.integers(1, 2000),
)
@settings(max_examples=50, deadline=None)
def test_known_costs_are_recovered(fixed: float, compute: float, over_path: float, loops: int, load: int) -> None:
    true = Costs(fixed_ms=fixed, compute_ms=compute, path_ms=over_path)
    light, heavy = (true.healthy_ms(count, over_paths=False) for count in (1, loops))
    found = loop_costs(light, heavy, loops, 0.07)
    assert found.fixed_ms == pytest.approx(fixed, abs=1e-6)
    assert found.compute_ms == pytest.approx(compute, abs=1e-6)
    found = with_paths(found, true.healthy_ms(load, over_paths=True), load, 0.08)
    assert found.path_ms == pytest.approx(over_path, abs=1e-5)
    assert found.sigma == 0.08


@given(
    light=st.floats(1e-3, 1e5), loops=st.floats(1e-3, 1e5), shift=st.floats(1e-3, 1e5), load=st.integers(1, 4096)
)
@settings(max_examples=50, deadline=None)
def test_readings_that_contradict_each_other_give_costs_all_the_same(
    light: float, loops: float, shift: float, load: int
) -> None:
    found = with_paths(loop_costs(light, loops, load, 0.05), shift, load, 0.05)
    assert found.fixed_ms > 0
    assert found.compute_ms >= 0
    assert found.path_ms >= 0


@pytest.mark.parametrize("sigma", [0.05, 0.2])
def test_the_scatter_is_about_the_noise_whatever_drifts_and_bursts(sigma: float) -> None:
    rng = np.random.default_rng(1)
    repeats = []
    for _ in range(200):
        level = np.cumsum(rng.normal(0, 0.005, 3))
        bursts = math.log(3) * (rng.random(3) < 0.05)
        repeats.append((level + rng.normal(0, sigma, 3) + bursts).tolist())
    assert scatter(repeats) == pytest.approx(sigma, rel=0.35)


def test_a_few_readings_that_agree_are_not_believed() -> None:
    assert scatter([[1.0, 1.0, 1.0]]) == LEAST_SIGMA
