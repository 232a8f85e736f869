"""Where the ranks sit, for an analysis: the document that the topology endpoint takes."""

from __future__ import annotations

import json
from typing import TypeGuard

from app.analyses.errors import UnreadableInput

_WANTED = 'a topology is JSON: {"gpus": [{"rank": 0, "host": "host-a"}, ...]} or that list alone'


def parse_topology(text: str) -> dict[int, str]:
    """Host of each rank.

    Raises
    ------
    UnreadableInput
        Naming the entry at fault.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableInput("bad_topology", _WANTED, "topology") from None
    places = document.get("gpus") if isinstance(document, dict) else document
    if not isinstance(places, list):
        raise UnreadableInput("bad_topology", _WANTED, "topology")
    hosts: dict[int, str] = {}
    for i, place in enumerate(places):
        where = f"topology.gpus[{i}]"
        rank, host = (place.get("rank"), place.get("host")) if isinstance(place, dict) else (None, None)
        if not isinstance(rank, int) or isinstance(rank, bool) or not _is_name(host):
            raise UnreadableInput("bad_topology", "needs an integer rank and the name of its host", where)
        if rank in hosts:
            raise UnreadableInput("named_twice", f"rank {rank} stands there twice", where)
        hosts[rank] = host
    return hosts


def _is_name(host: object) -> TypeGuard[str]:
    """Whether it is a text that can be printed and sent: half of a surrogate pair cannot."""
    return isinstance(host, str) and host.isprintable()
