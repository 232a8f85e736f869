"""Lists, pairs, rounds, ports and links: who is named, and when nobody is."""

from __future__ import annotations

from typing import Any

import pytest

from app.analyses.analyze import judge
from app.analyses.records import (
    ErrorCounts,
    Judgement,
    LinkStates,
    PairList,
    PerRank,
    Ports,
    Rounds,
    Scenarios,
    Sweeps,
    Totals,
)
from tests.analyses.support import codes, named


def ranks(*values: float, **more: Any) -> PerRank:
    return PerRank(dict(enumerate(values)), more.pop("bad", "high"), **more)


def nics(*values: float) -> PerRank:
    """Two hosts with two kinds of NIC each."""
    names = ["a:mlx0", "a:eth0", "b:mlx0", "b:eth0", "c:mlx0", "c:eth0"]
    kinds = {name: name[2:] for name in names}
    return PerRank(dict(zip(names, values, strict=True)), "low", classes=[kinds])


def open_with(answer: Judgement, code: str) -> bool:
    return answer.outcome == "inconclusive" and not answer.suspects and code in codes(answer)


def test_the_slow_one_of_a_list() -> None:
    answer = judge(ranks(10, 10.2, 21, 9.9, 10.1))
    assert named(answer) == [("gpu", (2,))]
    assert answer.suspects[0].slowdown == pytest.approx(2.08, abs=0.01)
    assert named(judge(ranks(10, 10.2, 4.8, 9.9, 10.1, bad="low"))) == [("gpu", (2,))]
    assert judge(ranks(10, 10.2, 10.4, 9.9, 10.1)).outcome == "healthy"


def test_the_fast_one_of_a_list_is_no_culprit() -> None:
    assert open_with(judge(ranks(10, 10.2, 3, 9.9, 10.1)), "fast_outlier")
    assert open_with(judge(ranks(60, 62, 0, 61, 63)), "fast_outlier")


def test_who_waits_least_is_the_culprit_and_who_waits_most_is_not() -> None:
    answer = judge(ranks(20, 22, 0.5, 21, 20, wait=True))
    assert named(answer) == [("gpu", (2,))]
    assert answer.suspects[0].slowdown is None
    assert "waits_least" in codes(answer)
    assert open_with(judge(ranks(20, 22, 90, 21, 20, wait=True)), "waits_differ")
    assert judge(ranks(20, 21, 20.5, 21, wait=True)).outcome == "healthy"


def test_two_need_a_reference() -> None:
    assert open_with(judge(ranks(10, 20)), "no_reference")
    assert judge(ranks(10, 10.1)).outcome == "healthy"
    assert open_with(judge(ranks(10)), "too_few")


def test_half_of_a_list_is_no_minority() -> None:
    assert named(judge(ranks(10, 10, 10, 20, 20, 20))) == []
    assert open_with(judge(ranks(10, 10.1, 10.2, 10, 30, 31, 32)), "two_levels")


def test_only_like_is_compared_with_like() -> None:
    assert named(judge(nics(40, 10, 40, 10, 40, 10))) == []
    assert named(judge(nics(40, 10, 40, 10, 20, 10))) == [("gpu", ("c:mlx0",))]
    # Dead ones are no class that is merely slower, whether all of them are dead or some.
    assert open_with(judge(nics(0, 25, 0, 25, 0, 25)), "class_effect")
    assert named(judge(nics(0, 10, 40, 10, 40, 10))) == [("gpu", ("a:mlx0",))]
    assert codes(judge(nics(0, 10, 40, 10, 40, 10))) == {"measured_zero"}
    names = [f"{host}:{nic}" for host in "abcdef" for nic in ("mlx0", "eth0", "eth1")]
    dead = {"a:eth0", "b:eth0", "c:eth0", "d:mlx0"}
    values = {name: 0.0 if name in dead else 10.0 if "eth0" in name else 40.0 for name in names}
    answer = judge(PerRank(values, "low", classes=[{name: name[2:] for name in names}]))
    assert {member for _, (member,) in named(answer)} == dead
    stages = {i: f"stage {i // 2}" for i in range(8)}
    assert open_with(judge(ranks(1, 1, 1, 1, 1, 1, 1.6, 1.6, classes=[stages])), "class_effect")


def test_own_work_of_two_ranks_against_a_control() -> None:
    control, faulty = ranks(50, 50.2), ranks(33, 14)
    assert named(judge(Scenarios([("balanced", control), ("loaded", faulty)], own_work=True))) == [("gpu", (0,))]
    assert named(judge(Scenarios([("balanced", control), ("loaded", faulty)], own_work=False))) == []
    assert named(judge(Scenarios([("loaded", faulty)], own_work=True))) == []
    other = ranks(14, 33)
    runs = [("balanced", control), ("one", faulty), ("two", other)]
    assert open_with(judge(Scenarios(runs, own_work=True)), "conditions_disagree")
    assert judge(Scenarios([("one", control), ("two", control)], own_work=True)).outcome == "healthy"


def test_who_stays_slow_when_it_is_paired_anew() -> None:
    first, second = {0: 200.0, 1: 150.0, 2: 20.0, 3: 20.0}, {0: 23.0, 1: 130.0, 2: 20.0, 3: 20.0}
    clean = dict.fromkeys(range(4), 20.0)
    assert named(judge(Rounds([first, second]))) == [("gpu", (1,))]
    assert open_with(judge(Rounds([first])), "not_repeated")
    assert open_with(judge(Rounds([first, clean])), "not_repeated")
    assert judge(Rounds([clean, clean])).outcome == "healthy"
    # Every node is slow in some round, and one round is empty.
    every = [{0: 9.0, 1: 9.0, 2: 1.0}, {}, {0: 9.0, 1: 1.0, 2: 9.0}]
    (suspect,) = judge(Rounds(every)).suspects
    assert (suspect.members, suspect.slowdown) == ([0], 9.0)


@pytest.mark.parametrize(
    "rounds",
    [[], [{}], [{0: 1.0, 1: 50.0}] * 2, [{0: 0.0, 1: 1.0, 2: 50.0, 3: 1.0}] * 2],
    ids=["none", "empty", "two nodes", "a node that took no time"],
)
def test_rounds_that_compare_nobody_are_not_healthy(rounds: list[dict[int | str, float]]) -> None:
    assert open_with(judge(Rounds(rounds)), "too_few")
    clean: dict[int | str, float] = dict.fromkeys(range(4), 20.0)
    assert judge(Rounds([*rounds, clean])).outcome == "healthy"


def pairs(*items: tuple[str, str, float], **more: Any) -> PairList:
    return PairList(items, "low", **more)


def test_a_host_whose_partners_are_fast_elsewhere() -> None:
    seen = [("a", "b", 49.0), ("a", "d", 49.5), ("c", "d", 88.0), ("b", "g", 87.0), ("e", "f", 49.0)]
    answer = judge(pairs(*seen))
    assert named(answer) == [("gpu", ("a",))]
    assert "unresolved" in codes(answer)
    # One slow pair alone is the pair or its end.
    assert open_with(judge(pairs(("a", "b", 20.0), ("b", "c", 50.0), ("c", "d", 50.5))), "unresolved")
    # Seen fast once: it is not the host.
    assert named(judge(pairs(*seen, ("a", "c", 88.0)))) == []


def test_a_pair_both_of_whose_ends_are_fast_elsewhere() -> None:
    seen = [
        ("a", "b", 20.0),
        ("a", "c", 50.0),
        ("a", "d", 50.0),
        ("b", "c", 50.5),
        ("b", "e", 49.5),
        ("d", "f", 50.0),
    ]
    assert named(judge(pairs(*seen))) == [("path", ("a", "b"))]


def test_pairs_that_say_too_little() -> None:
    assert open_with(judge(pairs(("a", "b", 10.0), ("c", "d", 50.0))), "too_few")
    assert open_with(judge(pairs(("a", "b", 10.0), ("c", "d", 50.0), ("e", "f", 25.0))), "no_reference")
    assert judge(pairs(("a", "b", 50.0), ("c", "d", 50.5), ("e", "f", 51.0))).outcome == "healthy"
    seen = [("a", "b", 20.0), ("c", "d", 20.0), ("a", "c", 50.0), ("b", "d", 50.0), ("e", "f", 50.0)]
    tags = {"cross-tor": frozenset({("a", "b"), ("c", "d")})}
    assert open_with(judge(pairs(*seen, tags=tags)), "hop_classes")


def test_pairs_across_hosts_are_not_compared_with_pairs_inside() -> None:
    hosts = {name: f"host-{name[0]}" for name in ("a0", "a1", "a2", "b0", "b1", "b2")}
    inside = [(f"{h}{i}", f"{h}{j}", 200.0) for h in "ab" for i, j in ((0, 1), (1, 2), (0, 2))]
    across = [("a0", "b0", 25.0), ("a1", "b1", 25.5), ("a2", "b2", 24.5)]
    answer = judge(pairs(*inside, *across, placement=hosts))
    assert (answer.outcome, named(answer)) == ("healthy", [])
    few = [("a0", "a1", 10.0), ("b0", "b1", 100.0)]
    assert open_with(judge(pairs(*few, *across, placement=hosts)), "too_few")


def test_all_pairs_are_a_matrix() -> None:
    names = [f"h{i}" for i in range(8)]
    seen = [(a, b, 25.0 if "h3" in {a, b} else 50.0) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert named(judge(pairs(*seen))) == [("gpu", ("h3",))]


def test_ports_that_are_down_while_the_others_are_up() -> None:
    names = [f"p{i}" for i in range(8)]
    up = dict.fromkeys(names, True)
    rate = dict.fromkeys(names, 200.0)
    assert judge(Ports(up, rate, {})).outcome == "healthy"
    answer = judge(Ports(up | {"p6": False}, rate, {}))
    assert (named(answer), answer.suspects[0].slowdown) == ([("gpu", ("p6",))], None)
    assert open_with(judge(Ports(dict.fromkeys(names, False), rate, {})), "mostly_down")
    assert named(judge(Ports(up, rate | {"p2": 100.0}, {}))) == [("gpu", ("p2",))]
    below = judge(Ports(up, dict.fromkeys(names, 100.0), rate))
    assert (below.outcome, named(below)) == ("uniform_slowdown", [])


def test_errors_at_one_port_with_different_peers() -> None:
    assert named(judge(ErrorCounts([{"n5": 1500}, {"n5": 1400}], ["x", "y"]))) == [("gpu", ("n5",))]
    assert open_with(judge(ErrorCounts([{"n5": 1500}, {"n5": 1400}], ["x", "x"])), "not_separated")
    assert open_with(judge(ErrorCounts([{"n5": 1500}, {"n4": 1400}], ["x", "y"])), "not_separated")
    assert open_with(judge(ErrorCounts([{"n1": 900, "n2": 700, "n3": 0}], [None])), "bystanders")
    assert judge(ErrorCounts([{"n1": 3, "n2": 0}], [None])).outcome == "healthy"
    for runs in ([], [{}], [{}, {}]):
        assert open_with(judge(ErrorCounts(runs, [None] * len(runs))), "too_few")


def test_error_rates_are_compared_in_decades() -> None:
    rates = {"n1": 1e-9, "n2": 1.5e-15, "n3": 2e-15, "n4": 0.0}
    assert named(judge(ErrorCounts([rates], [None], log_scale=True))) == [("gpu", ("n1",))]
    alike = dict.fromkeys(("n1", "n2", "n3"), 3e-9)
    assert judge(ErrorCounts([alike], [None], log_scale=True)).outcome == "healthy"


def test_links_that_are_down_while_others_of_the_gpu_are_up() -> None:
    full = [25.0] * 4
    assert judge(LinkStates({"gpu 0": full, "gpu 1": full})).outcome == "healthy"
    answer = judge(LinkStates({"gpu 0": full, "gpu 1": [25.0, 0.0, 25.0, 25.0]}))
    assert named(answer) == [("path", ("gpu 1 link 1",))]
    assert open_with(judge(LinkStates({"gpu 0": [0.0, 25.0], "gpu 1": [0.0, 25.0]})), "same_everywhere")
    assert open_with(judge(LinkStates({"gpu 0": full, "gpu 1": [0.0] * 4})), "all_links_down")
    assert open_with(judge(LinkStates({"gpu 0": full, "gpu 1": []})), "all_links_down")
    assert judge(LinkStates({"gpu 0": [None, None]})).outcome == "healthy"
    assert named(judge(LinkStates({"gpu 0": full, "gpu 1": [25.0, 12.5, 25.0, 25.0]}))) == [
        ("path", ("gpu 1 link 1",))
    ]


def test_one_curve_names_nobody_and_several_are_compared() -> None:
    curve = [(2.0**k, 50.0) for k in range(20, 26)]
    slow = [(size, value / 2) for size, value in curve]
    assert open_with(judge(Sweeps({"all": curve})), "aggregate_only")
    assert judge(Sweeps({"a": curve, "b": curve})).outcome == "healthy"
    assert open_with(judge(Sweeps({"a": curve, "b": slow})), "no_reference")
    assert named(judge(Sweeps({"a": curve, "b": curve, "c": slow, "d": curve}))) == [("gpu", ("c",))]


def test_totals_name_nobody() -> None:
    assert judge(Totals([{"write": 55.0}, {"write": 54.0}])).outcome == "healthy"
    assert open_with(judge(Totals([{"write": 55.0}, {"write": 3.0}])), "unsupported_kind")
    for patterns in ([], [{}, {}], [{"write": 55.0}], [{"write": 55.0}, {"read": 55.0}]):
        assert open_with(judge(Totals(patterns)), "too_few")
