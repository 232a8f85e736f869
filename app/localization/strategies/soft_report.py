"""What strategies that weigh evidence say alike: their suspects, notes, and names of what was not tested."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from app.localization.adaptive.costs import certified_effect
from app.localization.adaptive.found import Found
from app.localization.adaptive.planner import rounded
from app.localization.components import Component
from app.localization.settings import Settings
from app.localization.strategies.base import Note, Report, Suspect
from app.localization.strategies.threshold_report import slower_than_history

# Components listed by name before the verdict says "*".
NAMED_UNTESTED = 200
NAMED_FAST = 8
ALL_OF = {"gpu": "gpu:*", "path": "path:*-*", "group": "group:*"}

OUT_OF_MEASUREMENTS = Note(
    "out_of_measurements",
    "the readings contradict each other: the bound on measurements was reached before everything was decided;"
    " measure again when the replica is quieter",
)
PATHS_NOT_SELECTABLE = Note(
    "paths_not_selectable", "the all-to-all backend sends everything to everyone: paths cannot be told apart"
)


def soft_report(
    settings: Settings,
    found: Sequence[Found],
    alternatives: Mapping[Component, Sequence[Component]],
    *,
    refused: int | None,
    untested: list[str],
    smallest: Mapping[str, float],
    level: float | None,
    level_sigma: float = 0.0,
    notes: Sequence[Note],
    complete: bool,
) -> Report:
    """Make the report of a strategy that weighs evidence.

    Parameters
    ----------
    found : sequence of Found
        What is confirmed.
    alternatives : mapping of Component to sequence of Component
        Of what is confirmed: components that explain the same.
    refused : int or None
        A rank that does not take connections.
    smallest : mapping of str to float
        Smallest faults that were told from noise; infinite: none.
    level : float or None
        The healthy level, log ms.
    level_sigma : float
        How well it is known. An earlier job's, which it is held against, was hardly known better.
    """
    confirmed = sorted(found, key=lambda one: one.component)
    suspects = [_suspect(one, alternatives.get(one.component, ())) for one in confirmed]
    if refused is not None:
        suspects.insert(0, Suspect("gpu", [refused], None, False, 1.0, [], [], []))
    slow = sorted({rank for s in suspects if s.kind != "path" for rank in s.members})
    baseline = None if level is None else math.exp(level)
    settled = complete and not suspects and not any(note.open for note in notes)
    least = math.exp(certified_effect(math.sqrt(2) * level_sigma, 1))
    uniform = slower_than_history(settings, baseline, least) if settled else None
    return Report(
        suspects=suspects,
        masked=[f"path:{rank}-*" for rank in slow] if settings.paths_selectable else [],
        untested=untested,
        detectable=detectable(settings, smallest),
        baseline_ms=None if baseline is None else round(baseline, 3),
        notes=[*notes, *([uniform] if uniform else [])],
        uniform=uniform is not None,
    )


def detectable(settings: Settings, smallest: Mapping[str, float]) -> dict[str, float | None]:
    """Smallest faults as a verdict has them: rounded, None for none of a kind."""
    shown = rounded(smallest)
    return shown if settings.paths_selectable else shown | {"path": None, "delay_ms": None}


def names_of(components: Collection[Component]) -> list[str]:
    """Sorted names; ``*`` for all of a kind where they are very many."""
    if len(components) <= NAMED_UNTESTED:
        return [str(component) for component in sorted(components)]
    return [ALL_OF[kind] for kind in sorted({component.kind for component in components})]


def too_many(found: Sequence[Found]) -> Note:
    """More components are slow than faults explain."""
    names = ", ".join(str(f.component) for f in found[:4])
    return Note(
        "too_many_faults",
        f"more than {len(found) - 1} components read slow ({names} ...): that is rather something they share, or"
        " the way the replica is laid out, than as many faults; upload the topology, and look there first",
    )


def few_fast(components: Sequence[Component]) -> Note:
    """A few are so much faster than the rest that the rest may be slow."""
    names = ", ".join(map(str, components[:NAMED_FAST])) + " ..." * (len(components) > NAMED_FAST)
    return Note(
        "few_fast",
        f"{names} is faster than most, by as much as a fault: then most of the replica is slow, and nothing here"
        " tells what it should take; look at what has changed for all, or compare with another replica",
    )


def unstable(components: Sequence[Component]) -> Note:
    """Suspects that were not confirmed."""
    names = ", ".join(map(str, components))
    return Note(
        "unstable",
        f"{names} read slow in the sweep, but not when compared with clean references at the same time: it comes"
        " and goes; measure again",
    )


def _suspect(found: Found, alternatives: Sequence[Component]) -> Suspect:
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
