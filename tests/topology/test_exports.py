"""What a graph says of its nodes."""

from __future__ import annotations

from app.localization.placement import Place, Placement
from app.topology.exports import node_link


def test_a_node_has_what_any_of_its_gpus_states() -> None:
    places = (Place("a", nic="m0"), Place("a", nic="m0", rail="r0", rack="k"), Place("a", nic="m0"))
    nodes = {node["id"]: node for node in node_link(Placement(places))["nodes"]}
    assert nodes["host:a"] == {"id": "host:a", "kind": "host", "name": "a", "rack": "k"}
    assert nodes["nic:a/m0"] == {"id": "nic:a/m0", "kind": "nic", "name": "m0", "host": "a", "rail": "r0"}
