"""The verdict of a job: the answer, its evidence, and what stays open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.localization.single_rail import single_rail_notes
from app.localization.strategies.base import Note, Report, Strategy, Suspect

Outcome = Literal["localized", "healthy", "uniform_slowdown", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a session.

    Parameters
    ----------
    outcome : {"localized", "healthy", "uniform_slowdown", "inconclusive"}
        The answer in one word.
    suspects : list of Suspect
        What is slow, GPUs first; empty unless ``localized``.
    masked, untested : list of str
        Components hidden behind a slow GPU (``path:5-*``), and components never cleared nor accused.
    detectable : dict
        Smallest slowdowns this job could have seen; ``delay_ms`` in milliseconds.
    cost : dict
        ``probes`` (distinct), ``measurements``, ``path_units`` (tokens x directed paths) and ``seconds``.
    baseline_ms : float or None
        The healthy reference of the largest hop class, in milliseconds.
    reasons : list of dict
        ``code`` and ``text``.
    summary : str
        One sentence for the person on call.
    """

    outcome: Outcome
    suspects: list[Suspect]
    masked: list[str]
    untested: list[str]
    detectable: dict[str, float | None]
    cost: dict[str, float]
    baseline_ms: float | None
    reasons: list[dict[str, str]]
    summary: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @property
    def names(self) -> list[str]:
        """Names of the suspects."""
        return [suspect.name for suspect in self.suspects]


def conclude(
    strategy: Strategy,
    *,
    interrupted: Note | None,
    complete: bool,
    seconds: float,
    rails: Mapping[int, Set[int]],
) -> Verdict:
    """Make the verdict from what a strategy knows.

    Parameters
    ----------
    strategy : Strategy
        Finished or cut short.
    interrupted : Note or None
        Why it was cut short.
    complete : bool
        Whether the strategy ran to its end.
    seconds : float
        Wall time of all probes.
    rails : mapping of int to set of int
        Which of several rails carried each probe.
    """
    report = strategy.report(complete=complete)
    notes = [*report.notes, *([interrupted] if interrupted else []), *single_rail_notes(report.suspects, rails)]
    outcome = _outcome(report, notes)
    cost = strategy.record.cost(seconds)
    return Verdict(
        outcome=outcome,
        suspects=report.suspects,
        masked=report.masked,
        untested=report.untested,
        detectable=report.detectable,
        cost=cost,
        baseline_ms=report.baseline_ms,
        reasons=[{"code": note.code, "text": note.text} for note in notes],
        summary=_summary(outcome, report.suspects, notes, cost),
    )


def _outcome(report: Report, notes: list[Note]) -> Outcome:
    if report.suspects:
        return "localized"
    if report.uniform:
        return "uniform_slowdown"
    return "inconclusive" if any(note.open for note in notes) else "healthy"


def _summary(outcome: Outcome, suspects: list[Suspect], notes: list[Note], cost: dict[str, float]) -> str:
    effort = f"{cost['probes']:.0f} probes, {math.ceil(cost['seconds'])} s"
    if outcome == "localized":
        parts = ", ".join(_phrase(suspect) for suspect in suspects)
        return f"{parts} ({effort})"
    because = "; ".join(note.text for note in notes if note.open or note.code == "slower_than_history")
    if outcome == "healthy":
        return f"no slow GPU and no slow path found ({effort})"
    label = "uniform slowdown" if outcome == "uniform_slowdown" else "inconclusive"
    return f"{label}, because {because} ({effort})"


def _phrase(suspect: Suspect) -> str:
    if suspect.slowdown is None:
        return f"{suspect.name} does not answer"
    at_least = "at least " if suspect.slowdown_is_lower_bound else ""
    others = f" or {' and '.join(suspect.alternatives)}" if suspect.alternatives else ""
    return f"{suspect.name}{others} slows its probes by {at_least}{suspect.slowdown:.1f}x"
