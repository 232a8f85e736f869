"""A slow NIC, or all links of a GPU: in every probe of a sweep over the paths, so only sets of GPUs show it."""

from __future__ import annotations

import numpy as np
import pytest

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.link_sets import LEAST_GPUS, link_groups
from app.localization.adaptive.links import PARTNERS, LinkGroup, Shared
from app.localization.components import Component, gpu, path
from app.localization.faults import Fault
from app.localization.physics import OwnNoise, PhysicsReplica
from app.localization.shapes import Exchange
from tests.localization.adaptive.sessions import COSTS, TOLD, UNKNOWN, adaptive, answered, check_confirmed
from tests.localization.conftest import Run

either = pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
HOSTS = {8: (0,) * 4 + (1,) * 4, 16: tuple(rank // 4 for rank in range(16))}


def links(rank: int, n: int, slowdown: float = 4.0, *, leaving: tuple[int, ...] | None = None) -> list[Fault]:
    """Every path of a GPU, or those that leave its host."""
    others = [r for r in range(n) if r != rank and (leaving is None or leaving[r] != leaving[rank])]
    return [Fault(path(rank, other), slowdown) for other in others]


def run(n: int, faults: list[Fault], told: Assumptions, *, sigma: float = 0.0, **more: object) -> Run:
    noise = OwnNoise(sigma, np.random.default_rng(n))
    replica = PhysicsReplica(n, faults, COSTS, "serial", noise)
    return answered(adaptive(n, told, **more), replica.answer)


@either
@pytest.mark.parametrize("n", [8, 13, 16, 64])
def test_a_gpu_all_of_whose_links_are_slow_is_named_with_its_links(n: int, told: Assumptions) -> None:
    found = run(n, links(3, n), told)
    assert (found.verdict.names, found.verdict.outcome) == (["gpu:3"], "localized")
    (reason,) = [reason["text"] for reason in found.verdict.reasons if reason["code"] == "links"]
    assert reason.startswith("gpu:3: ")
    check_confirmed(found)


def test_with_five_gpus_it_is_named_or_all_of_its_paths() -> None:
    paths = [str(path(3, other)) for other in range(5) if other != 3]
    assert run(5, links(3, 5), UNKNOWN).verdict.names == ["gpu:3"]
    assert run(5, links(3, 5), TOLD["costs given"]).verdict.names == sorted(paths)


@either
def test_noise_does_not_hide_it(told: Assumptions) -> None:
    assert run(64, links(3, 64), told, sigma=0.05).verdict.names == ["gpu:3"]


@either
@pytest.mark.parametrize("n", [8, 16])
def test_a_nic_slows_what_leaves_the_host_only(n: int, told: Assumptions) -> None:
    found = run(n, links(3, n, leaving=HOSTS[n]), told, hosts=HOSTS[n])
    assert found.verdict.names == ["gpu:3"]


def test_what_stays_in_the_host_may_be_slow_as_well() -> None:
    hosts = HOSTS[16]
    inside = [Fault(path(3, other), 4.0) for other in range(16) if other != 3 and hosts[other] == hosts[3]]
    found = run(16, inside, UNKNOWN, hosts=hosts)
    assert found.verdict.names == ["gpu:3"]


@either
def test_what_it_masked_is_found_behind_it(told: Assumptions) -> None:
    found = run(32, [*links(3, 32), Fault(path(5, 9), 4.0), Fault(gpu(20), 1.6)], told)
    assert sorted(found.verdict.names) == ["gpu:20", "gpu:3", "path:5-9"]
    (reason,) = [reason["text"] for reason in found.verdict.reasons if reason["code"] == "links"]
    assert "gpu:20" not in reason


def test_two_at_once() -> None:
    assert run(64, links(3, 64) + links(40, 64), UNKNOWN).verdict.names == ["gpu:3", "gpu:40"]


@pytest.mark.parametrize("n", [6, 9, 16])
def test_two_slow_paths_of_a_gpu_are_not_its_links(n: int) -> None:
    found = run(n, [Fault(path(2, 4), 3.0), Fault(path(2, 5), 3.0)], UNKNOWN)
    assert found.verdict.names == ["path:2-4", "path:2-5"]


def test_with_given_costs_a_healthy_replica_takes_no_probe_more() -> None:
    told = TOLD["costs given"]
    healthy = run(64, [], told)
    assert healthy.verdict.outcome == "healthy"
    assert not any(
        isinstance(probe.shape, Exchange) and probe.shape.pairs
        for probe in healthy.session.strategy.record.probes.values()
    )


# --- the groups


def groups(n: int, sweep: PathSweep) -> list[LinkGroup]:
    return link_groups(tuple(range(n)), sweep, Shared("links", range(n)), np.random.default_rng(n))


@pytest.mark.parametrize("hops", ["same_host", "cross_host"])
@pytest.mark.parametrize("n", [8, 16])
def test_sets_are_disjoint_and_hold_everyone_over_paths_of_one_hop_class(n: int, hops: str) -> None:
    sweep = PathSweep(hops, HOSTS[n], width=8)
    sets = groups(n, sweep)
    assert sorted(rank for group in sets for rank in group.ranks) == list(range(n))
    for group in sets:
        shape = group.whole().shape
        assert isinstance(shape, Exchange)
        assert set(group.ranks) <= {rank for pair in shape.pairs for rank in pair}
        assert all(sweep.holds(pair) for pair in shape.pairs)


def test_a_gpu_alone_has_another_partner_every_time() -> None:
    group = groups(16, PathSweep(width=8))[0]
    seen = [shape.pairs for _ in range(PARTNERS) if isinstance(shape := group.cut(0, 1).shape, Exchange)]
    assert len(set(seen)) == PARTNERS
    assert all(len(pairs) == 1 and group.ranks[0] in pairs[0] for pairs in seen)


def test_a_reference_holds_nothing_slow() -> None:
    group, rng = groups(8, PathSweep(width=8))[0], np.random.default_rng(1)
    own = group.component(0)
    slow: frozenset[Component] = frozenset({gpu(6), gpu(7)})
    for _ in range(50):
        shape = group.reference(0, rng, slow)
        assert isinstance(shape, Exchange)
        assert not {own.members[0], 6, 7} & {rank for pair in shape.pairs for rank in pair}
    assert group.reference(0, rng, frozenset(map(gpu, range(8)))) is None


def test_few_gpus_are_left_to_the_paths() -> None:
    assert groups(LEAST_GPUS - 1, PathSweep()) == []
    alone = PathSweep("same_host", tuple(range(8)))
    assert groups(8, alone) == []
