"""Lines that tools print: what is read together, what is kept apart, and what names nobody."""

from __future__ import annotations

import json

import pytest

from app.analyses import Analysis, UnreadableInput, analyze
from tests.analyses.support import codes, named


def refused(text: str) -> tuple[str, str]:
    with pytest.raises(UnreadableInput) as caught:
        analyze(text)
    return caught.value.code, caught.value.place


def whole(times: dict[int, float]) -> str:
    line = "[rank {}] Dispatch + combine bandwidth: 90.1 GB/s, avg_t={} us, min_t=1.0 us, max_t=9.0 us\n"
    return "".join(line.format(rank, value) for rank, value in times.items())


def split(times: dict[int, float]) -> str:
    line = "[rank {}] Dispatch bandwidth: 90.1 GB/s, avg_t={} us | Combine bandwidth: 90.1 GB/s, avg_t=60.0 us\n"
    return "".join(line.format(rank, value) for rank, value in times.items())


ALIKE = dict.fromkeys(range(8), 114.0)


def test_dispatch_and_combine_together_are_judged_where_they_were_timed() -> None:
    text = "Allocating buffer size: 1880.1 MB ...\n" + whole(ALIKE) + split(ALIKE | {3: 300.0})
    answer = analyze(text + "[rank 0] Dispatch send/recv time: 17.00 + 8.88 us\n")
    assert (answer.format, answer.outcome) == ("deepep", "healthy")
    assert "series_left_out" in codes(answer)
    assert named(analyze(split(ALIKE) + whole(ALIKE | {3: 300.0}))) == [("gpu", (3,))]
    assert named(analyze(split(ALIKE | {3: 300.0}))) == [("gpu", (3,))]


def test_runs_of_a_deepep_test_are_one_only_where_all_ranks_have_all_of_them() -> None:
    answer = analyze(whole(ALIKE) + whole(ALIKE | {3: 300.0}) + whole(ALIKE))
    assert (answer.outcome, "repeats" in codes(answer)) == ("healthy", True)
    assert refused(whole(ALIKE) + split(ALIKE) + whole({3: 300.0})) == ("named_twice", "line 17")


def counters(unit: str, one: float = 150_000.0, others: float = 10.0, *, worse: bool = True) -> Analysis:
    values = {f"p{i}": one if i == 4 else others for i in range(8)}
    return analyze(json.dumps({"kind": "port_counters", "unit": unit, "higher_is_worse": worse, "values": values}))


@pytest.mark.parametrize(
    ("unit", "code"),
    [
        ("pause frames received", "caused_by_others"),
        ("CNPs sent", "caused_by_others"),
        ("rx_pfc_3", "caused_by_others"),
        ("np_ecn_marked_roce_packets", "caused_by_others"),
        ("congestion events", "caused_by_others"),
        ("frames", "traffic_not_capacity"),
        ("% utilisation of the link", "traffic_not_capacity"),
        ("slices selected", "unsupported_unit"),
        ("uptime (s)", "unsupported_unit"),
        ("s since the last link flap", "unsupported_unit"),
        ("", "unsupported_unit"),
    ],
)
def test_counts_that_are_no_errors_and_no_speed_name_nobody(unit: str, code: str) -> None:
    answer = counters(unit)
    assert (answer.outcome, named(answer), codes(answer)) == ("inconclusive", [], {code})


@pytest.mark.parametrize(
    "unit", ["Gbit/s sent during all_reduce", "tx rate (Gb/s)", "GB/s", "Gbps (average)", "Gb/s"]
)
def test_what_ports_carried_is_not_what_they_could_carry(unit: str) -> None:
    answer = counters(unit, 20.3, 180.1, worse=False)
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"traffic_not_capacity"})


@pytest.mark.parametrize(
    "unit", ["Gb/s", "Gb/s per lane", "link rate (Gb/s)", "Gbit/s capacity", "bandwidth, GB/s"]
)
def test_rates_of_links_are_judged(unit: str) -> None:
    assert named(counters(unit, 100, 200, worse=False)) == [("gpu", ("p4",))]


def test_packets_out_of_sequence_are_errors() -> None:
    answer = counters("out_of_sequence")
    assert (named(answer), codes(answer)) == ([("gpu", ("p4",))], {"errors_at_one_port"})
    assert named(counters("latency (us)", 9.0, 2.0)) == [("gpu", ("p4",))]


def test_pauses_do_not_count_among_the_errors_of_a_port() -> None:
    values = {f"p{i}": {"symbol_error": 0, "pause_storm_errors": 90_000 * (i == 4)} for i in range(8)}
    answer = analyze(json.dumps({"kind": "port_counters", "unit": "counts", "values": values}))
    assert (answer.outcome, codes(answer)) == ("healthy", {"no_errors"})
