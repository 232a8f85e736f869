"""What strategies that weigh evidence say alike: their suspects, notes, and names of what was not tested."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from app.localization.adaptive.examiner import Found
from app.localization.components import Component
from app.localization.strategies.base import Note, Suspect

# Components listed by name before the verdict says "*".
NAMED_UNTESTED = 200

OUT_OF_MEASUREMENTS = Note(
    "out_of_measurements",
    "the readings contradict each other: the bound on measurements was reached before everything was decided;"
    " measure again when the replica is quieter",
)
PATHS_NOT_SELECTABLE = Note(
    "paths_not_selectable", "the all-to-all backend sends everything to everyone: paths cannot be told apart"
)


def suspect_of(found: Found, alternatives: Sequence[Component] = ()) -> Suspect:
    """What the verdict says of a confirmed component."""
    return Suspect(
        kind=found.component.kind,
        members=list(found.component.members),
        slowdown=round(found.slowdown, 3),
        slowdown_is_lower_bound=found.censored,
        confidence=round(1 / (1 + math.exp(-found.log_odds)), 3),
        accusing=list(found.accusing),
        acquitting=list(found.acquitting),
        alternatives=[str(component) for component in alternatives],
    )


def refusing(rank: int) -> Suspect:
    """A GPU whose rank does not take connections."""
    return Suspect("gpu", [rank], None, False, 1.0, [], [], [])


def names_of(components: Collection[Component]) -> list[str]:
    """Sorted names; ``*`` for all of a kind where they are very many."""
    if len(components) <= NAMED_UNTESTED:
        return [str(component) for component in sorted(components)]
    return ["gpu:*" if kind == "gpu" else "path:*-*" for kind in sorted({c.kind for c in components})]


def too_many(found: Sequence[Found]) -> Note:
    """More components are slow than faults explain."""
    names = ", ".join(str(f.component) for f in found[:4])
    return Note(
        "too_many_faults",
        f"more than {len(found) - 1} components read slow ({names} ...): that is rather something they share, or"
        " the way the replica is laid out, than as many faults; upload the topology, and look there first",
    )


def unstable(components: Sequence[Component]) -> Note:
    """Suspects that were not confirmed."""
    names = ", ".join(map(str, components))
    return Note(
        "unstable",
        f"{names} read slow in the sweep, but not when compared with clean references at the same time: it comes"
        " and goes; measure again",
    )
