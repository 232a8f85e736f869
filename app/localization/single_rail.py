"""Accusations whose probes all came to the replica the same way: a slow front end is not a slow GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from app.localization.strategies.base import Note, Suspect


def single_rail_notes(suspects: Sequence[Suspect], rails: Mapping[int, Set[int]]) -> list[Note]:
    """Say for each suspect whether all that accuses it came through one rail.

    Parameters
    ----------
    suspects : sequence of Suspect
        Of the verdict.
    rails : mapping of int to set of int
        Rails of each probe, over all its measurements; empty when the replica has one only.
    """
    accusing = {number for suspect in suspects for number in suspect.accusing}
    notes = []
    for suspect in suspects:
        used = set().union(*(rails.get(number, set()) for number in suspect.accusing))
        if len(used) != 1:
            continue
        (rail,) = used
        others = sum(came == used for number, came in rails.items() if number not in accusing)
        notes.append(Note("single_rail", _text(suspect.name, rail, others), open=False))
    return notes


def _text(name: str, rail: int, others: int) -> str:
    came = f"all probes that accuse {name} came through probe_endpoints[{rail}] alone"
    if others:
        return f"{came}; {others} more came through it alone and accuse nothing"
    return f"{came}, and no other did: if that front end is slow, it looks the same"
