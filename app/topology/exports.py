"""A topology as a graph for other tools: networkx node-link JSON, and Graphviz DOT.

Nodes are hosts, GPUs, NICs and switches; edges are what traffic goes over. A host stands for its fabric: its GPUs
are joined to it. A GPU leaves by its NIC, the NIC by its leaf, a switch by the one above it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from app.localization.placement import Placement


def node_link(placement: Placement) -> dict[str, Any]:
    """The graph as ``networkx.node_link_graph(data, edges="edges")`` takes it."""
    nodes = [{"id": name, **attributes} for name, attributes in _nodes(placement).items()]
    edges = [{"source": one, "target": other} for one, other in _edges(placement)]
    return {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "edges": edges}


def dot(placement: Placement) -> str:
    """The graph in Graphviz's language, a cluster a host."""
    nodes = _nodes(placement)
    lines = ["graph topology {", "  node [shape=box];"]
    for host in placement.names("host"):
        inside = {name: found for name, found in nodes.items() if found.get("host") == host}
        inside[f"host:{host}"] = nodes[f"host:{host}"]
        lines += [f"  subgraph {_quoted(f'cluster_{host}')} {{", f"    label={_quoted(host)};"]
        lines += [f"    {_node(name, found)}" for name, found in inside.items()]
        lines.append("  }")
    lines += [f"  {_node(name, found)}" for name, found in nodes.items() if found["kind"] == "switch"]
    lines += [f"  {_quoted(one)} -- {_quoted(other)};" for one, other in _edges(placement)]
    return "\n".join([*lines, "}", ""])


def _nodes(placement: Placement) -> dict[str, dict[str, Any]]:
    """Attributes by node, without what was not stated; of a host or NIC any of its GPUs may state them."""
    found: dict[str, dict[str, Any]] = {}
    for rank, place in enumerate(placement.places):
        host = found.setdefault(f"host:{place.host}", {})
        host.update(_stated(kind="host", name=place.host, rack=place.rack))
        found[f"gpu:{rank}"] = _stated(kind="gpu", rank=rank, host=place.host, device=place.device)
        if place.nic is not None:
            nic = found.setdefault(f"nic:{place.host}/{place.nic}", {})
            nic.update(_stated(kind="nic", name=place.nic, host=place.host, rail=place.rail))
        for switch in placement.switches(place.leaf):
            found.setdefault(f"switch:{switch}", _stated(kind="switch", name=switch))
    return found


def _edges(placement: Placement) -> list[tuple[str, str]]:
    """Joined nodes, each pair once, in order of first appearance."""
    found: dict[tuple[str, str], None] = {}
    for rank, place in enumerate(placement.places):
        gpu, nic = f"gpu:{rank}", f"nic:{place.host}/{place.nic}"
        found[f"host:{place.host}", gpu] = None
        if place.nic is not None:
            found[gpu, nic] = None
        switches = [f"switch:{switch}" for switch in placement.switches(place.leaf)]
        way = [gpu if place.nic is None else nic, *switches]
        found.update(dict.fromkeys(pairwise(way)))
    return list(found)


def _stated(**attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _node(name: str, attributes: dict[str, Any]) -> str:
    """A node's line; the host's node is its fabric, as its cluster has its name."""
    labels = {"host": "fabric", "gpu": f"rank {attributes.get('rank')}"}
    return f"{_quoted(name)} [label={_quoted(labels.get(attributes['kind']) or attributes['name'])}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
