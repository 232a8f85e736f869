"""The fewest parts that explain what was accused piece by piece (DESIGN section 6, shared parts).

With fewer than four hosts, or NICs, none can be compared with the others, and their GPUs are accused one by one;
and of a leaf over two hosts, or a switch over two leaves, each of the two may be accused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from app.localization.adaptive.found import Found
from app.localization.adaptive.links import Part
from app.localization.components import Component, group_of
from app.localization.shapes import Ranks

# What a slow part of many looks like from its GPUs: slow at sends to other hosts, or to GPUs of the same host.
WIDER: Mapping[str, tuple[Part, ...]] = {
    "cross_host": ("nic", "uplink", "leaf", "switch"),
    "same_host": ("fabric",),
}
Units = Mapping[Part, Sequence[Ranks]]


def fold(found: Sequence[Found], hops: Mapping[Component, str], units: Units, slow: frozenset[int]) -> list[Found]:
    """Put one part in the place of two or more that together are all of it.

    Parameters
    ----------
    found : sequence of Found
        What is accused.
    hops : mapping of Component to str
        Of what was accused as a shared part: the hop class by which.
    units : mapping of part to sequence of ranks
        What the topology says.
    slow : frozenset of int
        GPUs that are slow themselves: they need not be among the accused for a part to be whole.
    """
    kept, ways = list(found), dict(hops)
    for way, wider in WIDER.items():
        for part in wider:
            for unit in units.get(part, ()):
                seen = [one for one in kept if ways.get(one.component) == way]
                inside = [one for one in seen if set(one.component.members) <= set(unit)]
                covered = {rank for one in inside for rank in one.component.members}
                if len(inside) > 1 and covered == set(unit) - slow:
                    whole = _as_one(inside, part)
                    ways[whole.component] = way
                    kept = [*(one for one in kept if one not in inside), whole]
    return kept


def equal_parts(one: Found, hops: str, units: Units) -> list[Part]:
    """Other parts of sends to other hosts with the very same GPUs: they predict the same, so no probe tells."""
    if hops == "same_host":
        return []
    across = {part: of for part, of in units.items() if part not in {"fabric", one.part}}
    own: list[Part] = ["links"] if one.component.kind == "gpu" and one.part != "links" else []
    return [*own, *(part for part, of in across.items() if one.component.members in of)]


def _as_one(inside: Sequence[Found], part: Part) -> Found:
    accusing = {number for one in inside for number in one.accusing}
    return Found(
        group_of({rank for one in inside for rank in one.component.members}),
        min(one.log_odds for one in inside),
        median(one.slowdown for one in inside),
        any(one.censored for one in inside),
        tuple(sorted(accusing)),
        tuple(sorted({number for one in inside for number in one.acquitting} - accusing)),
        part=part,
    )
