"""What all judges share: how much slower is slow, whom it names, and the answer that names nobody."""

from __future__ import annotations

import math

from app.analyses.records import Judgement, Label, Reason, Suspect

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


def inconclusive(code: str, text: str, *before: Reason) -> Judgement:
    """The answer that names nobody, and why; after the reasons ``before`` it."""
    return Judgement("inconclusive", reasons=[*before, Reason(code, text)])


def label_order(label: Label) -> tuple[int, int, str]:
    """Sorts ranks by number, and names after them."""
    return (0, label, "") if isinstance(label, int) else (1, 0, label)
