"""The topology of an analysis, from a document or a stored version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from app.analyses import Topology, UnreadableInput
from app.localization.placement import PLACE_FIELDS, Place
from app.topology import rules
from app.topology.errors import TopologyError

_WANTED = 'a topology is JSON: {"gpus": [{"rank": 0, "host": "host-a"}, ...]} or that list alone'


@dataclass(frozen=True, slots=True)
class _Gpu(Place):
    """A place and whose it is."""

    rank: int = 0


def parse_topology(text: str) -> Topology:
    """The topology that a document states: not every rank need be there, and fields that are not known are left.

    Raises
    ------
    UnreadableInput
        Naming the entry at fault.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableInput("bad_topology", _WANTED, "topology") from None
    entries = document.get("gpus") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise UnreadableInput("bad_topology", _WANTED, "topology")
    gpus = [_gpu(entry, f"topology.gpus[{i}]") for i, entry in enumerate(entries)]
    places: dict[int, Place] = {}
    for i, gpu in enumerate(gpus):
        if gpu.rank in places:
            raise UnreadableInput("named_twice", f"rank {gpu.rank} stands there twice", f"topology.gpus[{i}]")
        places[gpu.rank] = gpu
    parents = _parents(document.get("parents")) if isinstance(document, dict) else {}
    try:
        rules.check_places(gpus, parents)
    except TopologyError as error:
        raise UnreadableInput("bad_topology", error.message, _where(error)) from None
    return Topology(places, parents)


def _gpu(entry: Any, where: str) -> _Gpu:
    rank, host = (entry.get("rank"), entry.get("host")) if isinstance(entry, dict) else (None, None)
    if not isinstance(rank, int) or isinstance(rank, bool) or not _is_name(host):
        raise UnreadableInput("bad_topology", "needs an integer rank and the name of its host", where)
    stated = {name: entry[name] for name in PLACE_FIELDS if entry.get(name) is not None}
    for name, value in stated.items():
        if not _is_name(value):
            raise UnreadableInput("bad_topology", "must be a name, or left out", f"{where}.{name}")
    return _Gpu(rank=rank, **stated)


def _parents(stated: Any) -> dict[str, str]:
    if stated is None:
        return {}
    if not isinstance(stated, dict):
        raise UnreadableInput("bad_topology", "maps a switch to the one above it", "topology.parents")
    for switch, above in stated.items():
        if not _is_name(switch) or not _is_name(above):
            # !a: half of a surrogate pair cannot be printed.
            raise UnreadableInput("bad_topology", "must name the switch above it", f"topology.parents[{switch!a}]")
    return stated


def _where(error: TopologyError) -> str:
    """The place of an error, as those of the parser are written."""
    first, *rest = error.path
    return f"topology.{first}" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _is_name(value: Any) -> bool:
    """Whether it is a text that can be printed and sent: half of a surrogate pair cannot."""
    return isinstance(value, str) and value.isprintable()
