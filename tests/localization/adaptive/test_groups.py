"""Groups: every cut touches just the items it says, with one load for all ranks, and references are clean."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.designs import matchings, mixed_ring, shift_groups
from app.localization.adaptive.groups import Group, LoopGroup, PathGroup, PathSweep
from app.localization.adaptive.groups import Test as CutTest
from app.localization.adaptive.levels import LevelClass
from app.localization.components import Component, gpu, path
from app.localization.shapes import Exchange, Shape


def paths_of(shape: Shape) -> set[Component]:
    return {component for component in shape.components() if component.kind == "path"}


def loads(shape: Shape) -> set[int]:
    edges = shape.edges
    size = int(max(edges.sender.max(), edges.receiver.max())) + 1
    sent = np.bincount(edges.sender, edges.sequences, size)[list(shape.members)]
    received = np.bincount(edges.receiver, edges.sequences, size)[list(shape.members)]
    return set(sent.astype(int)) | set(received.astype(int))


@st.composite
def path_groups(draw: st.DrawFn) -> PathGroup:
    size, most = draw(st.integers(2, 24)), draw(st.integers(1, 4))
    ranks = sorted(draw(st.permutations(range(30)))[:size])  # some GPUs are out already
    ring = mixed_ring(ranks, None, np.random.default_rng(draw(st.integers(0, 99))))
    shifts = draw(st.sampled_from(shift_groups(size, most)))
    # As the planner chooses it: a load that r shifts divide evenly.
    sweep = PathSweep(width=draw(st.integers(1, 50)) * most, most=most, severities=2, diluted=draw(st.booleans()))
    if draw(st.booleans()):
        return PathGroup.of_shifts(ring, shifts, sweep)
    return PathGroup.of_matchings(ring, [m for shift in shifts for m in matchings(ring, shift)], sweep)


def some_excluded(group: Group, data: st.DataObject) -> None:
    items = group.beliefs.items
    group.beliefs.excluded[list(data.draw(st.sets(st.integers(0, items - 1), max_size=3)))] = True


@given(group=path_groups(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_cut_of_paths_touches_just_the_paths_it_says(group: PathGroup, data: st.DataObject) -> None:
    some_excluded(group, data)
    low = data.draw(st.integers(0, group.beliefs.items - 1))
    high = data.draw(st.integers(low + 1, group.beliefs.items))
    test = group.cut(low, high)
    assert test.low == low < test.high <= group.beliefs.items
    assert paths_of(test.shape) == set(group.items_of(test))
    assert not any(group.component(int(i)) in paths_of(test.shape) for i in np.flatnonzero(group.beliefs.excluded))
    assert test.shape.members == tuple(sorted(group.ring)), "all ranks of the ring are in every step"
    if group.sweep.diluted:
        assert test.dilution <= group.sweep.most * 2, "a matching of odd cycles may share a rank with the next"


@given(group=path_groups(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_every_rank_of_a_path_probe_carries_one_load(group: PathGroup, data: st.DataObject) -> None:
    some_excluded(group, data)
    low = data.draw(st.integers(0, group.beliefs.items - 1))
    for test in (group.whole(), group.cut(low, group.beliefs.items), group.cut(low, low + 1)):
        assert len(loads(test.shape)) == 1


@given(group=path_groups())
@settings(max_examples=50, deadline=None)
def test_whole_shifts_are_one_probe_and_the_load_is_that_of_the_sweep(group: PathGroup) -> None:
    assume(group.shifts)
    test = group.whole()
    assert (test.low, test.high) == (0, len(group.pairs))
    assert test.of == LevelClass("shift")
    assert loads(test.shape) == {group.width // len(group.shifts) * len(group.shifts)}


@given(group=path_groups(), data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_path_is_held_against_its_own_ends_without_it_and_nothing_slow(
    group: PathGroup, data: st.DataObject, seed: int
) -> None:
    item = data.draw(st.integers(0, len(group.pairs) - 1))
    others = [p for p in range(len(group.pairs)) if p != item]
    slow = frozenset(group.component(i) for i in data.draw(st.sets(st.sampled_from(others or [item]), max_size=2)))
    slow -= {group.component(item)}
    reference = group.reference(item, np.random.default_rng(seed), slow)
    own = set(group.pairs[item])
    if reference is None:
        assert len(group.ring) == 2 or slow, "only where nothing clean was found"
        return
    crossed = paths_of(reference)
    assert group.component(item) not in crossed
    assert not crossed & slow
    ends = {rank for component in crossed for rank in component.members}
    assert own & ends
    assert own <= ends or len(group.ring) == 3 or slow, "one end alone only where the other has no clean path"
    assert len(loads(reference)) == 1
    assert loads(reference) == loads(group.cut(item, item + 1).shape)


def test_references_stay_in_the_hop_class() -> None:
    hosts = (0, 0, 0, 0, 1, 1, 1, 1)
    sweep = PathSweep("same_host", hosts, width=8, severities=1)
    group = PathGroup.of_matchings(tuple(range(8)), [[(0, 1), (2, 3)]], sweep)
    for seed in range(20):
        reference = group.reference(0, np.random.default_rng(seed), frozenset())
        assert reference is not None
        assert {c.members for c in paths_of(reference)} <= {(0, 2), (0, 3), (1, 2), (1, 3)}


@st.composite
def loop_groups(draw: st.DrawFn) -> LoopGroup:
    everyone = draw(st.permutations(range(20)))
    size, pads = draw(st.integers(1, 10)), draw(st.integers(0, 10))
    group = LoopGroup(Beliefs(size, 2), 16, ranks=tuple(everyone[:size]))
    group.padding = list(everyone[size : size + pads])
    return group


def loop_members(test: CutTest) -> set[int]:
    assert isinstance(test.shape, Exchange)
    assert not test.shape.pairs
    return set(test.shape.members)


@given(group=loop_groups(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_cut_of_gpus_holds_them_and_healthy_ones_only(group: LoopGroup, data: st.DataObject) -> None:
    some_excluded(group, data)
    low = data.draw(st.integers(0, len(group.ranks) - 1))
    high = data.draw(st.integers(low + 1, len(group.ranks)))
    test = group.cut(low, high)
    wanted = {component.members[0] for component in group.items_of(test)}
    assert wanted <= loop_members(test) <= wanted | set(group.padding)
    assert len(loop_members(test)) == min(len(group.ranks), len(wanted) + len(group.padding))
    if loop_members(test):
        assert loads(test.shape) == {16}


@given(group=loop_groups(), data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_gpu_is_held_against_as_many_others(group: LoopGroup, data: st.DataObject, seed: int) -> None:
    item = data.draw(st.integers(0, len(group.ranks) - 1))
    mates = [rank for rank in group.ranks if rank != group.ranks[item]]
    slow = frozenset(map(gpu, data.draw(st.sets(st.sampled_from(mates), max_size=2)) if mates else ()))
    reference = group.reference(item, np.random.default_rng(seed), slow)
    if reference is None:
        assert all(gpu(rank) in slow for rank in mates)
        return
    suspect = group.cut(item, item + 1).shape
    assert group.ranks[item] in suspect.members
    assert group.ranks[item] not in reference.members
    assert not {gpu(rank) for rank in reference.members} & slow
    assert len(reference.members) == len(suspect.members)


def test_paths_of_one_matching_do_not_dilute_each_other() -> None:
    group = PathGroup.of_shifts(tuple(range(8)), (1, 2), PathSweep(width=8, most=2, severities=1))
    assert group.whole().dilution == 2
    assert group.cut(1, 3).dilution == 1
    assert group.component(0) == path(0, 1)
