"""Sizes of faults: larger ones show more, and none shows less than can be told from noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.costs import Costs, Transport
from app.localization.adaptive.hypotheses import FACTORS, LARGEST_FACTOR, MARGIN, Hypotheses

transports = st.sampled_from(["serial", "shared", "undiluted"])


@given(
    transport=transports,
    path=st.floats(1.01, 1000),
    gpu=st.floats(1.01, 1000),
    tokens=st.integers(1, 4000),
    dilution=st.integers(1, 16),
    least=st.floats(0, 2),
)
@settings(max_examples=50, deadline=None)
def test_effects_ascend_with_the_factor_and_are_never_below_the_least(
    transport: Transport, path: float, gpu: float, tokens: int, dilution: int, least: float
) -> None:
    hypotheses = Hypotheses(Costs(), transport, path=path, gpu=gpu)
    for effects in (hypotheses.of_path(tokens, dilution, least), hypotheses.of_gpu(tokens, least)):
        assert effects.shape == (hypotheses.severities,)
        assert np.isfinite(effects).all()
        assert (np.diff(effects[:FACTORS]) >= -1e-12).all()
        assert (np.diff(effects[FACTORS:]) >= -1e-12).all(), "of the delays"
        assert effects.min() >= MARGIN * least


@given(target=st.floats(1.05, 500))
@settings(max_examples=50, deadline=None)
def test_a_fault_at_the_target_lies_among_the_hypotheses_even_if_its_cost_is_a_quarter_off(target: float) -> None:
    costs = Costs()
    effects = Hypotheses(costs, "serial", path=target, gpu=target).of_path(1024, 1, 0.0)[:FACTORS]
    assert effects.min() <= costs.path_effect(1 + 0.76 * (target - 1), 1024, 1, "serial")
    assert effects.max() >= costs.path_effect(min(target, LARGEST_FACTOR), 1024, 1, "serial") - 1e-9


def test_dilution_lowers_the_effect_of_a_path_and_not_that_of_a_gpu() -> None:
    hypotheses = Hypotheses(Costs(), "serial", path=3, gpu=1.5)
    alone, among_four = (hypotheses.of_path(1024, dilution, 0.0)[:FACTORS] for dilution in (1, 4))
    assert (among_four < alone).all()
    excess = np.expm1(alone) / np.expm1(among_four)
    assert excess == pytest.approx(np.full(FACTORS, 4.0))
