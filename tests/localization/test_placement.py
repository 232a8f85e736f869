"""Which paths cross a shared part, hop classes, and the built-in layout; checked pair by pair."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.errors import SettingsError
from app.localization.placement import HOP_CLASSES, Place, Placement, SharedPart, layout
from app.topology.schemas import TopologyIn

LABEL = st.one_of(st.none(), st.sampled_from(["0", "1", "2"]))
PLACE = st.builds(Place, host=st.sampled_from(["a", "b", "c"]), nic=LABEL, rail=LABEL, leaf=LABEL)
PLACEMENTS = st.lists(PLACE, min_size=2, max_size=9).map(lambda places: Placement(tuple(places)))


def uses(part: SharedPart, a: Place, b: Place) -> bool:
    """The definition, for two GPUs."""
    if part.kind == "fabric":
        return a.host == b.host == part.name
    if a.host == b.host:
        return False
    at = {
        "nic": lambda p: f"{p.host}/{p.nic}" == part.name,
        "host": lambda p: p.host == part.name,
        "leaf": lambda p: p.leaf == part.name,
        "rail": lambda p: p.rail == part.name,
    }[part.kind]
    ends = at(a) + at(b)
    return ends == 1 if part.kind == "leaf" else ends == 2 if part.kind == "rail" else ends > 0


@given(PLACEMENTS, st.sampled_from(["nic", "host", "fabric", "leaf", "rail"]), st.data())
def test_a_part_is_crossed_by_exactly_the_paths_that_use_it(placement: Placement, kind, data) -> None:
    names = placement.names(kind)
    if not names:
        assert placement.problem_with(SharedPart(kind, "0")) == f"the topology states no {word(kind)}"
        return
    part = SharedPart(kind, data.draw(st.sampled_from(names)))
    crossing = placement.crosses(part)
    for u, v in product(range(len(placement.places)), repeat=2):
        assert crossing[u, v] == (u != v and uses(part, placement.places[u], placement.places[v]))
    assert (placement.problem_with(part) is None) == crossing.any()


def word(kind: str) -> str:
    return {"nic": "NIC", "fabric": "host"}.get(kind, kind)


@given(PLACEMENTS)
def test_hop_codes_are_the_hop_classes(placement: Placement) -> None:
    for u, v in product(range(len(placement.places)), repeat=2):
        assert HOP_CLASSES[placement.hop_codes[u, v]] == placement.hop_class(u, v)


def test_hop_classes() -> None:
    places = (
        Place("a", nic="0", rail="0", leaf="x"),
        Place("a", nic="1", rail="1", leaf="y"),
        Place("b", nic="0", rail="0", leaf="x"),
        Place("b", nic="1", rail="1", leaf="x"),
        Place("c", nic="0", rail="0", leaf="z"),
        Place("d"),
    )
    classes = [Placement(places).hop_class(0, v) for v in range(1, 6)]
    assert classes == ["same_host", "cross_host", "cross_rail", "cross_leaf", "cross_host"]


@given(st.integers(2, 40), st.data())
def test_the_built_in_layout_fills_hosts_nics_and_leaves_evenly(gpus: int, data) -> None:
    hosts = data.draw(st.integers(1, gpus))
    nics = data.draw(st.integers(1, gpus // hosts))
    leaves = data.draw(st.integers(1, hosts))
    placement = layout(gpus, hosts, nics_per_host=nics, leaves=leaves)
    assert len(placement.names("host")) == hosts
    assert len(placement.names("nic")) == hosts * nics
    assert len(placement.names("leaf")) == leaves
    assert len(placement.names("rail")) == nics
    on_host = [sum(p.host == name for p in placement.places) for name in placement.names("host")]
    under_leaf = [len({p.host for p in placement.places if p.leaf == name}) for name in placement.names("leaf")]
    assert max(on_host) - min(on_host) <= 1
    assert max(under_leaf) - min(under_leaf) <= 1
    assert all(p.nic == p.rail for p in placement.places)


def test_by_default_every_gpu_has_a_nic_and_hosts_are_under_two_leaves() -> None:
    placement = layout(8, 2)
    assert placement.places[5] == Place("host-b", "cuda:1", "1", "1", "1")
    assert layout(8, 1).names("leaf") == ("0",)
    assert layout(4, ("x", "y", "x", "y")).places[3] == Place("y", "cuda:1")
    assert layout(4, ("x", "y", "x", "y"), nics_per_host=1, leaves=2).places[3] == Place(
        "y", "cuda:1", "0", "0", "1"
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hosts": 0}, "hosts"),
        ({"hosts": 9}, "hosts"),
        ({"hosts": ("a",)}, "hosts"),
        ({"hosts": 2, "nics_per_host": 5}, "nics_per_host"),
        ({"hosts": 2, "nics_per_host": 0}, "nics_per_host"),
        ({"hosts": 2, "leaves": 3}, "leaves"),
    ],
)
def test_layouts_out_of_range_are_named(settings, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        layout(8, **settings)
    assert caught.value.field == named


def test_the_document_is_what_the_service_takes() -> None:
    for placement in (layout(8, 2), layout(4, ("x", "y", "x", "y"))):
        read = TopologyIn.model_validate(placement.document())
        assert tuple(Place(g.host, g.device, g.nic, g.rail, g.leaf) for g in read.gpus) == placement.places


def test_what_is_missing_is_said_with_what_exists() -> None:
    placement = layout(16, 4)
    assert placement.problem_with(SharedPart("nic", "host-a/4")) == (
        "the topology has no NIC 'host-a/4'; it has host-a/0, host-a/1, host-a/2, host-a/3, host-b/0, host-b/1,"
        " host-b/2, host-b/3, host-c/0, host-c/1, host-c/2, host-c/3 and 4 more"
    )
    assert placement.problem_with(SharedPart("fabric", "x")) == (
        "the topology has no host 'x'; it has host-a, host-b, host-c, host-d"
    )
    one = layout(4, 1)
    assert one.problem_with(SharedPart("host", "host-a")) == "no path crosses host:host-a in this topology"
    assert one.problem_with(SharedPart("fabric", "host-a")) is None
    assert one.problem_with(SharedPart("all")) is None
