"""Ports: which states are bad, who is a port's like, and what iblinkinfo says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.analyses import UnreadableInput, analyze

UP = {"state": "ACTIVE", "rate": "400 Gb/sec", "link_layer": "InfiniBand"}
STORAGE = {"state": "ACTIVE", "rate": "100 Gb/sec", "link_layer": "Ethernet"}


def answer(**ports: Any) -> tuple[str, list[str], set[str]]:
    values = {f"mlx5_{i}": UP for i in range(8)} | ports
    found = analyze(json.dumps({"kind": "port_counters", "unit": "port state", "values": values}))
    return found.outcome, [suspect.name for suspect in found.suspects], {reason.code for reason in found.reasons}


def test_a_port_of_another_link_layer_is_nobodys_like() -> None:
    assert answer(mlx5_8=STORAGE) == ("healthy", [], {"not_compared", "all_alike"})
    assert answer(mlx5_8=STORAGE | {"state": "DOWN"})[:2] == ("inconclusive", [])
    assert answer(mlx5_8=STORAGE, mlx5_3=UP | {"rate": "200 Gb/sec"})[:2] == ("localized", ["mlx5_3"])


def test_a_port_that_somebody_disabled_is_off_on_purpose() -> None:
    assert answer(mlx5_8={"state": "1: DOWN", "phys_state": "3: Disabled"})[:2] == ("healthy", [])
    assert answer(mlx5_8=UP | {"state": "1: DOWN", "phys_state": "2: Polling"})[:2] == ("localized", ["mlx5_8"])


@pytest.mark.parametrize(
    ("up", "down"), [("ACTIVE", "INIT"), ("PORT_ACTIVE", "PORT_DOWN"), ("Up", "Down"), ("4: ACTIVE", "1: DOWN")]
)
def test_states_have_many_words(up: str, down: str) -> None:
    values: dict[str, Any] = {f"ib{i}": down if i == 7 else up for i in range(8)}
    for given in (values, {name: {"state": state} for name, state in values.items()}):
        found = analyze(json.dumps({"kind": "port_counters", "unit": "port state", "values": given}))
        assert [suspect.name for suspect in found.suspects] == ["ib7"]


def test_a_port_that_is_up_but_was_down_time_and_again() -> None:
    calm = {f"mlx5_{i}": UP | {"carrier_down_count": 1, "link_downed": 0} for i in range(8)}
    assert answer(**calm)[:2] == ("healthy", [])
    flaps = {"mlx5_3": UP | {"carrier_down_count": 420, "link_downed": 210}}
    assert answer(**calm | flaps) == ("localized", ["mlx5_3"], {"errors_at_one_port"})
    other = {"mlx5_4": UP | {"carrier_down_count": 0, "link_downed": 9000}}
    assert answer(**calm | flaps | other)[:2] == ("inconclusive", [])


def ibs(*lines: tuple[str, str]) -> str:
    return "\n".join(f"CA: {name}:\n      0x01    1    1[  ] ==( {link})==>   3  1[  ] " for name, link in lines)


FULL, LAME, DOWN = "4X  25.78125 Gbps Active/  LinkUp", "1X  25.78125 Gbps Active/  LinkUp", "   Down/ Polling"


def named(text: str) -> list[str]:
    return [suspect.name for suspect in analyze(text).suspects]


def test_every_adapter_of_iblinkinfo_is_judged() -> None:
    hosts = [(f"host-{x} HCA-1", FULL) for x in "abd"]
    assert named(ibs(*hosts, ("host-c HCA-1", DOWN))) == ["host-c"]
    several = [(f"host-{x} mlx5_{i}", FULL) for x in "abd" for i in (0, 1)]
    assert named(ibs(*several, ("host-c mlx5_0", LAME), ("host-c mlx5_1", FULL))) == ["host-c:mlx5_0"]


def test_a_second_port_without_a_cable_is_no_fault() -> None:
    second = f"\n      0x01    1    2[  ] ==( {DOWN})==>  [  ] "
    lines = [ibs((f"host-{x} HCA-1", FULL)) + (second if x == "a" else "") for x in "abcd"]
    assert analyze("\n".join(lines)).outcome == "healthy"


def test_no_adapter_at_all_is_no_health() -> None:
    with pytest.raises(UnreadableInput) as error:
        analyze("hello", kind="iblinkinfo")
    assert error.value.code == "no_values"
