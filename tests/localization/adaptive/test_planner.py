"""The planner reaches the targets with the shortest sweep, or says that it cannot."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.adaptive.costs import Costs
from app.localization.adaptive.planner import PARTS, Targets, plan_localize
from app.localization.errors import SettingsError


@pytest.mark.parametrize(
    ("gpus", "transport", "r", "sweep"),
    [(300, "serial", 2, 75), (300, "shared", 1, 150), (300, None, 1, 150), (64, "serial", 2, 16)],
)
def test_paths_three_times_slow_at_five_percent_noise(
    gpus: int, transport: str | None, r: int, sweep: int
) -> None:
    """DESIGN section 5: r = 2 and 75 probes at n = 300 where sends take turns; one receiver where they share."""
    plan = plan_localize(gpus, Costs(), Targets(gpu=1.5, path=3.0), transport)  # type: ignore[arg-type]
    assert (plan.r, plan.probes_healthy - PARTS, plan.repeats, plan.reachable) == (r, sweep, 1, True)


def test_nothing_dilutes_in_the_binary_model() -> None:
    plan = plan_localize(300, Costs(), Targets(gpu=1.5, path=1.5), "undiluted")
    assert (plan.r, plan.probes_healthy) == (150, 1 + PARTS)


def test_what_is_out_of_reach_is_said_with_the_best_that_is_not() -> None:
    plan = plan_localize(300, Costs(sigma=0.3), Targets(gpu=1.05, path=1.1), "serial")
    assert not plan.reachable
    assert plan.detectable["path"] > 1.1
    better = Targets(gpu=plan.detectable["gpu"] * 1.001, path=plan.detectable["path"] * 1.001)
    assert plan_localize(300, Costs(sigma=0.3), better, "serial").reachable


def test_a_server_that_takes_little_is_not_asked_for_more() -> None:
    plan = plan_localize(64, Costs(compute_ms=0.5, path_ms=0.5), Targets(), "serial", max_tokens=5)
    assert max(plan.tokens, plan.loop_tokens) <= 5
    assert plan.tokens % plan.r == 0


def test_hosts_of_one_size_keep_hop_classes_apart() -> None:
    """8 hosts of 8: 4 of the 32 shifts stay inside, so groups of 3 are 10 + 2 where one class would have 11."""
    loose, apart = (
        plan_localize(64, Costs(sigma=0.03), Targets(path=3.0), "serial", hosts=hosts) for hosts in (1, 8)
    )
    assert loose.r == apart.r == 3
    assert (loose.probes_healthy, apart.probes_healthy) == (11 + PARTS, 10 + 2 + PARTS)


@given(
    gpus=st.integers(2, 128),
    sigma=st.floats(0.001, 0.5),
    path=st.floats(1.05, 20),
    gpu=st.floats(1.05, 5),
    delay=st.none() | st.floats(0.1, 100),
    transport=st.sampled_from(["serial", "shared", "undiluted", None]),
    limit=st.none() | st.integers(1, 2000),
)
def test_a_reachable_plan_sees_the_targets(
    gpus: int, sigma: float, path: float, gpu: float, delay: float | None, transport: str | None, limit: int | None
) -> None:
    wanted = Targets(gpu=gpu, path=path, delay_ms=delay)
    plan = plan_localize(gpus, Costs(sigma=sigma), wanted, transport, max_tokens=limit)  # type: ignore[arg-type]
    seen = plan.detectable
    met = seen["path"] <= path * 1.000001 and seen["gpu"] <= gpu * 1.000001
    assert plan.reachable == (met and (delay is None or seen["delay_ms"] <= delay * 1.000001))
    assert 1 <= plan.r <= max(1, gpus // 2)
    assert 1 <= plan.repeats <= 15
    assert limit is None or max(plan.tokens, plan.loop_tokens) <= limit


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("n", {"gpus": 1}),
        ("n", {"gpus": 2000}),
        ("hosts", {"hosts": 65}),
        ("max_tokens", {"max_tokens": 0}),
    ],
)
def test_what_is_out_of_range_is_named(field: str, wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError) as refused:
        plan_localize(**{"gpus": 64, "costs": Costs(), "targets": Targets(), **wrong})  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("target_path", {"path": 1.0}), ("target_gpu", {"gpu": math.nan}), ("target_delay", {"delay_ms": -1.0})],
)
def test_targets_out_of_range_are_named(field: str, wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError) as refused:
        Targets(**wrong)
    assert refused.value.field == field
