"""Lines that tools print: what is read together, what is kept apart, and what names nobody."""

from __future__ import annotations

import json

import pytest

from app.analyses import Analysis, UnreadableInput, analyze
from app.analyses.analyze import judge
from app.analyses.records import Judgement, LinkStates
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


FULL = [25.0] * 4


def links(n: int, **changed: list[float | None]) -> Judgement:
    """Links of n GPUs, all of them active but for those of ``gpu_1=[...]``."""
    return judge(LinkStates({f"gpu {i}": changed.get(f"gpu_{i}", FULL) for i in range(n)}))


@pytest.mark.parametrize(
    "answer",
    [
        links(2, gpu_0=[0, 0, 25, 25], gpu_1=[25, 25, 0, 0]),
        links(8, **{f"gpu_{i}": [25, 25, 0, 0] for i in range(4)}),
        links(8, gpu_2=[25, 25, 25, 0], gpu_5=[25, 25, 25, 0]),
        links(8, gpu_0=[0, 25, 25, 25], gpu_1=[25, 0, 25, 25], gpu_2=[25, 25, 0, 25], gpu_3=[25, 25, 25, 0]),
    ],
)
def test_inactive_links_that_gpus_share_are_wiring(answer: Judgement) -> None:
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"wiring"})


def test_inactive_links_of_few_gpus_are_named() -> None:
    assert named(links(8, gpu_3=[25, 0, 25, 0])) == [("path", ("gpu 3 link 1",)), ("path", ("gpu 3 link 3",))]
    assert len(links(8, gpu_3=[25, 0, 25, 25], gpu_6=[25, 25, 0, 25]).suspects) == 2


def test_a_gpu_without_an_active_link_is_named_unless_it_may_lack_a_bridge() -> None:
    dead: list[float | None] = [0] * 4
    assert named(links(8, gpu_5=dead)) == [("gpu", ("gpu 5",))]
    assert named(links(4, gpu_0=dead)) == [("gpu", ("gpu 0",))]
    for answer in (
        links(7, gpu_5=dead),
        links(3, gpu_0=dead),
        links(8, gpu_5=dead, gpu_6=dead),
        links(8, gpu_5=dead, gpu_6=[25, 25, 25, 0]),
        links(8, gpu_5=[0, 0]),
        links(8, gpu_5=[]),
    ):
        assert (answer.outcome, codes(answer)) == ("inconclusive", {"all_links_down"})


def test_a_gpu_whose_links_are_all_slow_is_one_suspect() -> None:
    answer = links(8, gpu_2=[12.5] * 4)
    assert [(s.kind, s.members, s.slowdown) for s in answer.suspects] == [("gpu", ["gpu 2"], 2.0)]
    both = links(8, gpu_2=[12.5] * 4, gpu_4=[25, 12.5, 25, 25])
    assert named(both) == [("gpu", ("gpu 2",)), ("path", ("gpu 4 link 1",))]
    assert codes(links(8, gpu_2=[12.5] * 2)) == {"two_levels"}


ROUNDS = [
    "{2: 20.307, 3: 20.265, 0: 206.872, 1: 151.752}",
    "{2: 20.307, 3: 20.265, 0: 23.174, 1: 135.961}",
    "{2: 20.1, 3: 20.2, 0: 20.3, 1: 20.6}",
]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"[INFO] Round {i}: The node elapsed time are {times}" for i, times in enumerate(ROUNDS)),
        "\n[INFO] waiting for Round 1, {}\n".join(f"Round {i}: {times}" for i, times in enumerate(ROUNDS)),
        "\n".join(f"The elapsed time of nodes are {times}" for times in ROUNDS),
    ],
)
def test_rounds_of_a_node_check_among_other_lines(text: str) -> None:
    answer = analyze(text)
    assert (answer.format, named(answer)) == ("node-check", [("gpu", (1,))])


def test_a_round_that_several_nodes_logged_is_one_round() -> None:
    line = f"Round 0: The node elapsed time are {ROUNDS[0]}\n"
    assert codes(analyze(line * 4)) == {"not_repeated"}


def test_rounds_that_are_cut_or_of_something_else_are_no_rounds() -> None:
    times = "Round 0: The node elapsed time are {0: 1, 1: 1, 2: 1}\n"
    assert refused(times + times.replace("Round 0", "Round 1").replace("2: 1}", "")) == ("bad_number", "line 2")
    assert refused(times.replace("1: 1", "1: x")) == ("bad_number", "line 1")
    for body in ("{loss: 0.1, acc: 0.9, f1: 0.8}", "scores {0: 0.1, 1: 0.9, 2: 0.8}"):
        assert analyze("\n".join(f"Round {i}: {body}" for i in range(3))).format == "table"


def pair_lines(between: str, end: str, n: int = 6, name: str = "node") -> str:
    return "".join(
        f"{name}{a}{between}{name}{b}{end.format(12.1 if 3 in (a, b) else 45.0 + 0.1 * b)}\n"
        for a in range(n)
        for b in range(a + 1, n)
    )


@pytest.mark.parametrize(
    ("between", "end", "name", "slow"),
    [
        (" <-> ", ": {} GB/s", "node", "node3"),
        (" -> ", "  {} GB/s", "GPU", "GPU3"),
        (" -> ", ": {}GB/s (busbw)", "GPU ", "GPU 3"),
        (",", "   {} GB/s", "node", "node3"),
        ("→", " = {} Gbit/s", "10.0.0.", "10.0.0.3"),
        (" <-> ", ": {} GB/s", "rank ", 3),
    ],
)
def test_a_pair_a_line_with_its_unit(between: str, end: str, name: str, slow: int | str) -> None:
    answer = analyze("# pairs\n" + pair_lines(between, end, name=name))
    assert (answer.format, named(answer)) == ("pairs-text", [("gpu", (slow,))])


def test_pairs_without_a_unit_or_with_two_name_nobody() -> None:
    assert codes(analyze(pair_lines(" <-> ", ": {}"))) == {"unit_missing"}
    assert codes(analyze(pair_lines(",", " {} %"))) == {"unit_missing"}
    assert refused(pair_lines(",", " {} GB/s") + "node8,node9 45000 MB/s\n") == ("mixed_units", "line 16")
    assert refused(pair_lines(",", " {} GB/s") + "node8,node9 45\n") == ("mixed_units", "line 16")
    assert refused(pair_lines(",", " {} GB/s") + "node8,node8 45 GB/s\n") == ("bad_pair", "line 16")
    assert refused(pair_lines(",", " {} GB/s") + "node8 is down\n") == ("bad_number", "line 16")


def test_a_comment_on_pairs_tells_their_kind() -> None:
    lines = "a,b 50 GB/s\nc,d 50.1 GB/s\ne,f 50.2 GB/s\na,d 25 GB/s{0}\nc,f 25 GB/s{0}\na,f 25 GB/s{0}\n"
    assert codes(analyze(lines.format(" # across leaves"))) == {"hop_classes"}
    assert "hop_classes" not in codes(analyze(lines.format(" # slow!")))
