"""The whole notation: what reads and prints, and what is refused with which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.faults import FaultError, FaultSyntaxError, UnknownPartError, parse_fault, parse_faults
from app.localization.placement import SharedPart, layout

NAME = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
NUMBER = st.floats(0.001, 9999).map(lambda x: float(f"{x:.6f}"))
TARGET = st.one_of(
    st.builds("gpu:{}".format, st.integers(0, 99)),
    st.sampled_from(["path:3-17", "path:3>17", "path:17>3", "all"]),
    st.builds("nic:{}/{}".format, NAME, NAME),
    st.builds("{}:{}".format, st.sampled_from(["host", "fabric", "leaf", "rail"]), NAME),
)
SEVERITY = st.one_of(NUMBER.map("*{:f}".format), NUMBER.map("+{:f}ms".format))
RAMP = st.one_of(st.just(""), NUMBER.map("/{:f}s".format))
DUTY = st.one_of(st.just(""), st.floats(0.001, 1).map("@{:f}".format))


@given(st.builds("{}{}{}{}".format, TARGET, SEVERITY, RAMP, DUTY))
def test_what_is_printed_reads_as_the_same_fault(text: str) -> None:
    fault = parse_fault(text)
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nic:host-a/0*3", "nic:host-a/0*3"),
        ("host:host-b*2.0", "host:host-b*2"),
        ("leaf:1+20ms", "leaf:1+20ms"),
        ("fabric:host-a!hang", "fabric:host-a!hang"),
        ("rail:0!error", "rail:0!error"),
        ("gpu:7*2.0@0.3", "gpu:7*2@0.3"),
        ("gpu:7*2@1", "gpu:7*2"),
        ("all*1.2/60s", "all*1.2/60s"),
        ("path:3>17+20ms/1.5s@0.25", "path:3>17+20ms/1.5s@0.25"),
        ("host:a*2*3", "host:a*2*3"),
        ("nic:rack 4/node 7/mlx5_0*2", "nic:rack 4/node 7/mlx5_0*2"),
    ],
)
def test_how_faults_print(text: str, shown: str) -> None:
    assert str(parse_fault(text)) == shown


def test_the_last_severity_counts_and_the_rest_is_the_name() -> None:
    fault = parse_fault("host:a*2@0.3*3@0.5")
    assert (fault.component, fault.factor, fault.duty) == (SharedPart("host", "a*2@0.3"), 3.0, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nic:a*2", "nic:host-a/0*3"),
        ("spine:1*2", "switch:spine-1*2"),
        ("all", "all*1.3"),
        ("all!hang", "only a GPU, NIC"),
        ("path:3-17!hang", "only a GPU, NIC"),
        ("gpu:1!hang@0.5", "only a slowdown can grow"),
        ("gpu:1!error/5s", "only a slowdown can grow"),
        ("gpu:1*2@0", "share after @"),
        ("gpu:1*2@1.5", "share after @"),
        ("gpu:1*2/0s", "time after /"),
        ("gpu:1*2/90000s", "time after /"),
        ("gpu:1*2@0.5/5s", "is not a fault"),
        ("gpu:1*2/5", "is not a fault"),
    ],
)
def test_refusals_name_what_is_accepted(text: str, words: str) -> None:
    with pytest.raises(FaultSyntaxError, match=words.replace("*", r"\*")):
        parse_fault(text, 64)


def test_parts_are_checked_against_the_topology() -> None:
    placement = layout(16, 4)
    texts = ["nic:host-a/0*3", "host:host-b*2", "leaf:1*2", "rail:3*2", "fabric:host-d*2", "all*2", "gpu:15*2"]
    assert len(parse_faults(texts, 16, placement)) == len(texts)
    for text, exists in (
        ("nic:host-e/0*3", "host-a/0, host-a/1"),
        ("host:host-e*2", "host-a, host-b, host-c, host-d"),
        ("leaf:2*2", "0, 1"),
        ("rail:4*2", "0, 1, 2, 3"),
    ):
        with pytest.raises(UnknownPartError, match=exists):
            parse_fault(text, 16, placement)
        assert parse_fault(text, 16)  # unknown topology: not checked
    with pytest.raises(FaultError, match="0 to 15"):
        parse_fault("gpu:16*2", 16, placement)


def test_a_fault_at_a_strength() -> None:
    fault = parse_fault("gpu:1*3/10s@0.5")
    assert str(fault.scaled(0.5)) == "gpu:1*2"
    assert str(parse_fault("all+40ms/10s").scaled(0.25)) == "all+10ms"
    assert [parse_fault(text).varies for text in ("gpu:1*2", "gpu:1*2/5s", "gpu:1*2@0.5")] == [False, True, True]
