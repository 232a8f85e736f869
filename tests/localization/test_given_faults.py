"""Given faults in the simulator, shared parts among them: what the present strategy answers, right or wrong.

It names GPUs and paths only. What it says about a shared part is stated here as it is, so that a change shows.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.localization.errors import SettingsError
from app.localization.expectation import compare, expected_names
from app.localization.faults import parse_faults
from app.localization.placement import layout
from app.localization.simulation import simulate_given

SMALL = {"n": 16, "k": 4, "hosts": 4}
LARGE = {"n": 64, "k": 8, "hosts": 8}


def simulated(*texts: str, n: int = 16, k: int = 4, hosts: int = 4, **more: Any) -> dict[str, Any]:
    placement = layout(n, hosts)
    faults = parse_faults(texts, n, placement)
    defaults = {"strategy": "faultsense", "trials": 1, "noise": 0.0, "seed": 1, "placement": placement}
    return simulate_given(faults, n=n, k=k, **{**defaults, **more})


@pytest.mark.parametrize("texts", [["gpu:5*2"], ["path:3-9*2"], ["path:9>3+20ms"], ["gpu:5*2", "path:5-9*2"], []])
def test_gpus_and_paths_are_named(texts: list[str]) -> None:
    result = simulated(*texts)
    assert (result["exact_rate"], result["false_suspects_per_trial"], result["missed_per_trial"]) == (1, 0, 0)
    assert list(result["named"]) == result["expected"]


@pytest.mark.parametrize(
    ("size", "fault", "known", "outcome", "symptoms"),
    [
        (SMALL, "fabric:host-a*2", True, "localized", 6),
        (SMALL, "rail:0*2", True, "localized", 6),
        (SMALL, "leaf:1*2", True, "localized", 64),
        (LARGE, "fabric:host-a*2", True, "localized", 28),
        (LARGE, "rail:0*2", True, "localized", 28),
        (LARGE, "fabric:host-a*2", False, "inconclusive", 0),
        (LARGE, "rail:0*2", False, "inconclusive", 0),
    ],
)
def test_of_a_shared_part_it_names_all_paths_or_asks_for_the_topology(
    size: dict[str, int], fault: str, known: bool, outcome: str, symptoms: int
) -> None:
    result = simulated(fault, **size, topology_known=known)
    assert result["expected"] == [fault.partition("*")[0]]
    assert result["outcomes"] == {outcome: 1}
    assert (result["symptoms_per_trial"], result["false_suspects_per_trial"]) == (symptoms, 0)
    assert (result["exact_rate"], result["missed_per_trial"]) == (0, 1)
    assert ("topology_needed" in result["reasons"]) == (not known)


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [("nic:host-a/0*3", ["gpu:0"]), ("host:host-b*2", ["gpu:4", "gpu:5", "gpu:6", "gpu:7"])],
)
def test_it_blames_the_gpus_behind_a_nic_or_uplink_which_counts_as_false(fault: str, blamed: list[str]) -> None:
    result = simulated(fault, **SMALL)
    assert sorted(result["named"]) == blamed
    assert (result["exact_rate"], result["false_suspects_per_trial"]) == (0, len(blamed))


def test_a_part_that_slows_most_probes_looks_healthy_without_history_and_uniform_with_it() -> None:
    for fault in ("host:host-b*2", "leaf:1*2"):
        assert simulated(fault, **LARGE)["outcomes"] == {"healthy": 1}
        known = simulated(fault, **LARGE, history=True)
        assert known["outcomes"] == {"uniform_slowdown": 1}
        assert known["missed_per_trial"] == 1


def test_a_slowdown_of_everything_is_an_outcome_that_needs_history() -> None:
    assert simulated("all*1.5")["exact_rate"] == 0
    known = simulated("all*1.5", history=True)
    assert (known["exact_rate"], known["outcomes"], known["expected"]) == (1, {"uniform_slowdown": 1}, [])


@pytest.mark.parametrize("part", ["gpu:7", "nic:host-a/0", "host:host-b"])
def test_hangs_and_errors_end_the_job_with_the_reason(part: str) -> None:
    for hard, code in (("hang", "engine_hung"), ("error", "engine_failed")):
        result = simulated(f"{part}!{hard}")
        assert (result["exact_rate"], result["outcomes"]) == (1, {"inconclusive": 1})
        assert code in result["reasons"]


@pytest.mark.slow
def test_a_flapping_fault_strikes_its_share_and_is_found_more_often_the_larger_it_is() -> None:
    rates = [simulated(f"path:3-9*3@{duty}", trials=60, noise=0.01)["exact_rate"] for duty in (0.05, 0.5, 0.9)]
    assert rates[0] < 0.2
    assert rates[0] < rates[1] < rates[2]
    assert rates == [
        simulated(f"path:3-9*3@{duty}", trials=60, noise=0.01)["exact_rate"] for duty in (0.05, 0.5, 0.9)
    ]


def test_a_fault_that_grows_slowly_is_not_there_yet_in_a_short_job() -> None:
    assert simulated("gpu:5*2/3600s")["outcomes"] == {"healthy": 1}
    assert simulated("gpu:5*2/0.001s")["exact_rate"] == 1


def test_what_cannot_be_simulated_is_named() -> None:
    with pytest.raises(SettingsError, match="trials"):
        simulated("gpu:5*2", trials=0)
    with pytest.raises(ValueError, match="placement"):
        simulated("nic:host-a/0*2", placement=None)


def test_expected_names() -> None:
    placement = layout(16, 4)

    def names(*texts: str, selectable: bool = True) -> list[str]:
        return expected_names(parse_faults(texts, 16, placement), selectable=selectable, placement=placement)

    assert names("nic:host-a/0*3", "gpu:5*2", "path:1-2*2") == ["gpu:5", "nic:host-a/0", "path:1-2"]
    assert names("nic:host-a/0*3", "path:0-5*2") == ["nic:host-a/0"], "masked by the part"
    assert names("nic:host-a/0*3", "gpu:5*2", selectable=False) == ["gpu:5"]
    assert names("all*2", "gpu:5*2") == ["gpu:5"]
    assert names("nic:host-a/0!hang", "gpu:5*2") == []


def test_a_verdict_is_split_into_missed_wrong_and_symptoms() -> None:
    placement = layout(16, 4)
    faults = parse_faults(["nic:host-a/0*3", "gpu:9*2"], 16, placement)
    named = ["path:0-5", "path:1-5", "gpu:0", "group:1-2", "gpu:9"]
    result = compare(faults, outcome="localized", named=named, codes=[], placement=placement)
    assert result.missed == ("nic:host-a/0",)
    assert result.symptoms == ("path:0-5",)
    assert result.wrong == ("gpu:0", "group:1-2", "path:1-5")
    assert not result.exact
    right = compare(faults, outcome="localized", named=["gpu:9", "nic:host-a/0"], codes=[], placement=placement)
    assert right.exact
