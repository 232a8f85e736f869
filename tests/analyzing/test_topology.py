"""The topology of an analysis: the whole document is read, and what it must not say is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.analyses import UnreadableInput
from app.analyzing.topology import parse_topology
from app.localization.placement import layout

TWO = [{"rank": 0, "host": "a", "leaf": "l0"}, {"rank": 1, "host": "b", "leaf": "l1"}]


def test_what_an_import_prints_is_read_whole() -> None:
    document = layout(16, 4, nics_per_host=2, leaves=2).document() | {"parents": {"0": "spine", "1": "spine"}}
    topology = parse_topology(json.dumps(document))
    assert topology.parents == {"0": "spine", "1": "spine"}
    place = topology.places[13]
    assert (place.host, place.nic, place.rail, place.leaf) == ("host-d", "0", "0", "1")


def test_a_list_of_some_ranks_with_fields_of_others_is_read() -> None:
    topology = parse_topology('[{"rank": 7, "host": "a", "nic": null, "colour": "red", "position": 3}]')
    assert [(rank, place.host, place.nic) for rank, place in topology.places.items()] == [(7, "a", None)]
    version = {"version": 3, "replica_id": "x", "gpus": TWO, "parents": None}
    assert parse_topology(json.dumps(version)).parents == {}


def _with(**more: Any) -> str:
    return json.dumps([{"rank": 0, "host": "a"}, {"rank": 1, "host": "a"} | more])


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("[1]", "bad_topology", "topology.gpus[0]"),
        ('[{"rank": 0, "host": "a"}, {"rank": 0, "host": "a"}]', "named_twice", "topology.gpus[1]"),
        ("not json", "bad_topology", "topology"),
        ("3", "bad_topology", "topology"),
        ("[" * 100_000, "bad_topology", "topology"),
        (r'[{"rank": 0, "host": "\ud800"}]', "bad_topology", "topology.gpus[0]"),
        (_with(rank=True), "bad_topology", "topology.gpus[1]"),
        *[
            (_with(**{name: 3}), "bad_topology", f"topology.gpus[1].{name}")
            for name in ("nic", "rail", "leaf", "rack")
        ],
        (_with(leaf=["l0"]), "bad_topology", "topology.gpus[1].leaf"),
        (_with(nic="\ud800"), "bad_topology", "topology.gpus[1].nic"),
        (json.dumps({"gpus": TWO, "parents": ["l0"]}), "bad_topology", "topology.parents"),
        (json.dumps({"gpus": TWO, "parents": {"l0": 3}}), "bad_topology", "topology.parents['l0']"),
        (json.dumps({"gpus": TWO, "parents": {"\ud800": "s"}}), "bad_topology", r"topology.parents['\ud800']"),
        (json.dumps({"gpus": TWO, "parents": {"l0": "s", "s": "l0"}}), "bad_topology", "topology.parents.l0"),
        (json.dumps({"gpus": TWO, "parents": {"l2": "s"}}), "bad_topology", "topology.parents.l2"),
        (
            _with(rank=1, nic="n", leaf="x")[:-1] + ', {"rank": 2, "host": "a", "nic": "n", "leaf": "y"}]',
            "bad_topology",
            "topology.gpus[2].leaf",
        ),
    ],
)
def test_a_bad_topology_is_refused_with_its_place(text: str, code: str, place: str) -> None:
    with pytest.raises(UnreadableInput) as caught:
        parse_topology(text)
    assert (caught.value.code, caught.value.place) == (code, place)
    json.dumps([caught.value.detail, caught.value.place], ensure_ascii=False).encode()


def test_a_cycle_is_said_in_words() -> None:
    with pytest.raises(UnreadableInput, match="l0 -> s -> l0"):
        parse_topology(json.dumps({"gpus": TWO, "parents": {"l0": "s", "s": "l0"}}))
