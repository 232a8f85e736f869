"""Faults over time: the share they strike, where, and how they grow."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.emulator.timeline import RAMP_STEPS, Timeline
from app.localization.faults import parse_faults

SAMPLES = 2000


def timeline(*texts, **more):
    return Timeline(parse_faults(texts), **{"started": 100.0, "seed": 3, **more})


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.99), st.integers(0, 2**32), st.integers(0, 1000), st.floats(0.01, 100))
def test_a_fault_strikes_its_share_of_every_period_at_a_stretch(duty, seed, period, period_s):
    faults = timeline(f"gpu:7*2@{duty:f}", seed=seed, period_s=period_s)
    times = [100 + (period + (i + 0.5) / SAMPLES) * period_s for i in range(SAMPLES)]
    strikes = [bool(faults.at(time)) for time in times]
    assert sum(strikes) == pytest.approx(duty * SAMPLES, abs=3)
    assert sum(a != b for a, b in itertools.pairwise(strikes)) <= 2


def when(faults, name):
    return [any(str(f).startswith(name) for f in faults.at(100 + i / 97)) for i in range(970)]


def test_when_it_strikes_comes_from_seed_and_fault_and_not_from_its_neighbours():
    alone = when(timeline("gpu:7*2@0.3"), "gpu:7")
    assert when(timeline("gpu:7*2@0.3"), "gpu:7") == alone
    assert when(timeline("path:0-1*2@0.5", "gpu:7*2@0.3", "gpu:8*2@0.3"), "gpu:7") == alone
    assert when(timeline("gpu:7*2@0.3", seed=4), "gpu:7") != alone
    assert when(timeline("gpu:8*2@0.3"), "gpu:8") != alone


def test_what_strikes_is_a_steady_fault():
    faults = timeline("gpu:7*2@0.5", "gpu:1+5ms")
    seen = {tuple(map(str, faults.at(100 + i / 10))) for i in range(100)}
    assert seen == {("gpu:1+5ms",), ("gpu:7*2", "gpu:1+5ms")}


@given(st.floats(0, 200), st.floats(0.1, 100))
def test_a_growing_fault_is_at_its_share_of_the_way_and_then_stays(age, ramp_s):
    factor, delay = timeline(f"gpu:7*3/{ramp_s:f}s", f"all+40ms/{ramp_s:f}s").at(100 + age)
    share = min(1.0, age / float(f"{ramp_s:f}"))
    assert factor.factor == pytest.approx(1 + 2 * share, abs=2.1 / RAMP_STEPS)
    assert delay.delay_ms == pytest.approx(40 * share, abs=41 / RAMP_STEPS)


def test_steady_faults_are_the_same_object_at_all_times():
    faults = timeline("gpu:7*2", "nic:host-a/0*3")
    assert faults.at(100) is faults.at(200) is faults.faults
