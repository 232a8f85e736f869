"""Thresholds, aggregation and early stops; fault strings and component names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.components import gpu, parse_component, path
from app.localization.faults import FaultSyntaxError, parse_fault
from app.localization.ledger import Ledger
from app.localization.settings import Settings, default_baseline, default_probe_size
from app.localization.thresholds import Reading, baseline_ms, combine

values = st.lists(st.floats(1, 1000), min_size=1, max_size=15)


@given(values)
def test_median_and_minimum(found: list[float]) -> None:
    readings = [Reading(v) for v in found]
    ordered = sorted(found)
    assert combine(readings, "min").value_ms == ordered[0]
    assert ordered[0] <= combine(readings, "median").value_ms <= ordered[-1]
    assert combine(readings, "median") == combine(list(reversed(readings)), "median")


def test_a_result_that_rests_on_a_censored_reading_is_censored() -> None:
    cut = Reading(100.0, censored=True)
    assert combine([Reading(1.0), cut, cut], "median").censored
    assert not combine([Reading(1.0), Reading(2.0), cut], "median").censored
    assert not combine([Reading(1.0), cut, cut], "min").censored


def test_low_decile_survives_more_slow_probes_than_the_median() -> None:
    sweep = [20.0] * 3 + [40.0] * 7
    assert baseline_ms(sweep, "median", 1.3) == 40.0
    assert baseline_ms(sweep, "low_decile", 1.3) == 20.0
    assert baseline_ms([20.0, 40.0, 40.0], "low_decile", 1.3) == 20.0, "only one probe is fast"
    assert baseline_ms([20.0, 22.0, 40.0], "low_decile", 1.3) == 21.0, "the mean of at least two"


@given(st.lists(st.floats(1, 100), min_size=3, max_size=3), st.sampled_from(["median", "min"]))
def test_stopping_early_decides_as_all_repeats_would(found: list[float], aggregate: str) -> None:
    ledger = Ledger(Settings(gpus=8, k=4, repeats=3, aggregate=aggregate))  # type: ignore[arg-type]
    probe = ledger.open((0, 1, 2, 3), 2, "gpu:0")
    ledger.baselines[ledger.class_of(probe.members)] = 30.0
    steps, taken = ledger.judge(probe), 0
    next(steps)
    try:
        while True:
            taken += 1
            steps.send(Reading(found[taken - 1]))
    except StopIteration as end:
        decided = end.value
    assert decided == (combine([Reading(v) for v in found], aggregate).value_ms > 39.0)  # type: ignore[arg-type]
    assert taken <= 3


def test_two_agreeing_repeats_of_three_are_enough() -> None:
    ledger = Ledger(Settings(gpus=8, k=4, repeats=3))
    probe = ledger.open((0, 1, 2, 3), 2, "gpu:0")
    ledger.baselines[ledger.class_of(probe.members)] = 30.0
    steps = ledger.judge(probe)
    next(steps)
    steps.send(Reading(10.0))
    with pytest.raises(StopIteration):
        steps.send(Reading(10.0))


@pytest.mark.parametrize(
    ("n", "k", "method"), [(64, 8, "median"), (8, 4, "low_decile"), (4, 2, "low_decile"), (300, 8, "median")]
)
def test_default_baseline(n: int, k: int, method: str) -> None:
    assert default_baseline(n, k) == method


@pytest.mark.parametrize(("n", "k"), [(2, 2), (3, 2), (4, 2), (8, 4), (16, 8), (300, 8)])
def test_default_probe_size(n: int, k: int) -> None:
    assert default_probe_size(n) == k


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpu:5*2.0", "gpu:5*2"),
        ("path:17-3*4", "path:3-17*4"),
        ("path:3-17+20ms", "path:3-17+20ms"),
        ("path:17>3+20ms", "path:17>3+20ms"),
        ("gpu:7!hang", "gpu:7!hang"),
        (" gpu:7!error ", "gpu:7!error"),
    ],
)
def test_fault_strings_read_and_print(text: str, shown: str) -> None:
    fault = parse_fault(text)
    assert str(fault) == shown
    assert parse_fault(str(fault)) == fault


def test_one_way_faults_affect_one_direction() -> None:
    both, one = parse_fault("path:3-17*4"), parse_fault("path:17>3*4")
    assert [both.affects(3, 17), both.affects(17, 3), both.affects(3, 4)] == [True, True, False]
    assert [one.affects(3, 17), one.affects(17, 3)] == [False, True]
    assert one.component == both.component


@pytest.mark.parametrize(
    "text",
    [
        "gpu:5", "gpu:*2", "path:3-3*2", "path:3-17", "path:3-17!hang", "gpu:5*0", "gpu:5+0ms", "gpu:-1*2",
        "nic:a*2",
        "gpu:5*1e9", "gpu:5*nan", "gpu:64*2", "gpu:٥*2", "gpu:5*2 gpu:6*2", "",
    ],
)  # fmt: skip
def test_other_fault_strings_are_refused(text: str) -> None:
    with pytest.raises(FaultSyntaxError):
        parse_fault(text, 64)


def test_component_names() -> None:
    assert parse_component("path:17-3") == path(3, 17)
    assert str(path(17, 3)) == "path:3-17"
    assert parse_component("gpu:4") == gpu(4)
    for text in ("gpu:", "path:3", "path:3-3", "nic:a"):
        with pytest.raises(ValueError, match="path"):
            parse_component(text)
