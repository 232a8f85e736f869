"""What all judges share: how much slower is slow, whom it names, and the answer that names nobody."""

from __future__ import annotations

import math
from statistics import median

from app.analyses.records import Judgement, Label, Reason, Suspect
from app.analyses.topology import Topology

#: A GPU or a path has to be this much slower than its like (the default alpha of a job), in logarithm.
LEAST = math.log(1.3)

#: Logarithm of the largest ratio that is worth a figure.
_LARGEST = 100.0


def times(excess: float) -> float | None:
    """A slowdown from its logarithm; None where it has no size, as against nothing at all."""
    return round(math.exp(excess), 3) if -_LARGEST < excess < _LARGEST else None


def suspect(label: Label, excess: float | None) -> Suspect:
    """A vertex; ``excess`` is the logarithm of its slowdown; None or infinite where that has no size."""
    slowdown = None if excess is None else times(excess)
    return Suspect("gpu", [label], slowdown, f"rank {label}" if isinstance(label, int) else label)


def slow_path(a: Label, b: Label, excess: float) -> Suspect:
    """The path between two vertices, whichever stands first."""
    first, second = sorted((a, b), key=label_order)
    return Suspect("path", [first, second], times(excess), f"path {first}-{second}")


def folded(suspects: list[Suspect], topology: Topology | None) -> tuple[list[Suspect], list[Reason]]:
    """One group for the vertices where they are exactly the ranks of a host, NIC or leaf; and why."""
    alone = [s for s in suspects if s.kind == "gpu"]
    ranks = sorted((s.members[0] for s in alone), key=label_order)
    part = topology.part_of(ranks) if topology else None
    if part is None:
        return suspects, []
    sizes = [s.slowdown for s in alone if s.slowdown is not None]
    group = Suspect("group", ranks, round(median(sizes), 3) if sizes else None, part)
    text = f"{part}: slow are exactly its ranks, and nobody else"
    return [*(s for s in suspects if s.kind != "gpu"), group], [Reason("shared_part", text)]


def inconclusive(code: str, text: str, *before: Reason) -> Judgement:
    """The answer that names nobody, and why; after the reasons ``before`` it."""
    return Judgement("inconclusive", reasons=[*before, Reason(code, text)])


def label_order(label: Label) -> tuple[int, int, str]:
    """Sorts ranks by number, and names after them."""
    return (0, label, "") if isinstance(label, int) else (1, 0, label)
