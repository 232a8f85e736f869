"""The verdict of a job: the answer, its evidence, and what stays open."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from app.localization.components import Component
from app.localization.evidence import Finding
from app.localization.probes import Probe
from app.localization.strategies.base import Note, Strategy

# More slow paths than this, with nothing known of where the GPUs sit, are rather the longer kind of path.
MAX_PATHS_WITHOUT_TOPOLOGY = 8

Outcome = Literal["localized", "healthy", "uniform_slowdown", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Suspect:
    """One accused component.

    Parameters
    ----------
    kind, members
        As in `Component`.
    slowdown : float or None
        Its isolating probes over the baseline (a whole probe, so diluted for a path); None for a hard failure.
    slowdown_is_lower_bound : bool
        The probes were cut off at their deadline.
    confidence : float
        Rule of succession over the measurements that isolated it, (slow + 1) / (all + 2).
    accusing, acquitting : list of int
        Slow and fast probes that contain it.
    alternatives : list of str
        Components that explain the same measurements equally well.
    """

    kind: str
    members: list[int]
    slowdown: float | None
    slowdown_is_lower_bound: bool
    confidence: float
    accusing: list[int]
    acquitting: list[int]
    alternatives: list[str]

    @property
    def name(self) -> str:
        """For example ``path:3-17``."""
        return f"{self.kind}:{'-'.join(map(str, self.members))}"


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
        Smallest slowdowns this job could have seen; ``delay_ms`` in milliseconds. See `detectable`.
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


def conclude(strategy: Strategy, *, interrupted: Note | None, complete: bool, seconds: float) -> Verdict:
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
    """
    notes = [*strategy.notes, *([interrupted] if interrupted else [])]
    suspects = [_suspect(strategy, f) for _, f in sorted(strategy.evidence.findings.items())]
    if strategy.settings.hosts is None and sum(s.kind == "path" for s in suspects) > MAX_PATHS_WITHOUT_TOPOLOGY:
        notes.append(_needs_topology(suspects))
        suspects = [s for s in suspects if s.kind == "gpu"]
    baseline = _main_baseline(strategy)
    uniform = None if suspects or not complete else _uniform(strategy, baseline)
    if uniform:
        notes.append(uniform)
    outcome = _outcome(suspects, notes, uniform)
    cost = _cost(strategy, seconds)
    return Verdict(
        outcome=outcome,
        suspects=suspects,
        masked=_masked(strategy),
        untested=_untested(strategy, complete=complete),
        detectable=detectable(strategy, baseline),
        cost=cost,
        baseline_ms=None if baseline is None else round(baseline, 3),
        reasons=[{"code": note.code, "text": note.text} for note in notes],
        summary=_summary(outcome, suspects, notes, cost),
    )


def detectable(strategy: Strategy, baseline: float | None) -> dict[str, float | None]:
    """The smallest faults a probe of k GPUs can show at this threshold, at best.

    With r = k - 1 paths a sender, a path slowed by s adds at most (s - 1)/r of the probe under serial transport
    and (s - r)/r under shared transport (DESIGN section 5, dilution); the worse of both is given. A slow
    GPU is not diluted. An added delay counts in full.
    """
    alpha, r = strategy.settings.alpha, strategy.settings.k - 1
    path = max(1 + (alpha - 1) * r, alpha * r) if strategy.settings.paths_selectable else None
    return {
        "gpu": round(alpha, 3),
        "path": None if path is None else round(path, 3),
        "delay_ms": None if baseline is None or path is None else round((alpha - 1) * baseline, 3),
    }


def _outcome(suspects: list[Suspect], notes: list[Note], uniform: Note | None) -> Outcome:
    if suspects:
        return "localized"
    if uniform:
        return "uniform_slowdown"
    return "inconclusive" if any(note.open for note in notes) else "healthy"


def _uniform(strategy: Strategy, baseline: float | None) -> Note | None:
    """History decides only this: everything is slower than an earlier healthy job (DESIGN section 5)."""
    history = strategy.settings.history_ms
    if history is None or baseline is None or baseline <= strategy.settings.alpha * history:
        return None
    return Note(
        "slower_than_history",
        f"all probes alike take {baseline / history:.2f}x the time of the last healthy job"
        f" ({baseline:.2f} ms against {history:.2f} ms): look at load, software or clocks, not at one part",
        open=False,
    )


def _needs_topology(suspects: list[Suspect]) -> Note:
    paths = [s.name for s in suspects if s.kind == "path"]
    return Note(
        "topology_needed",
        f"{len(paths)} paths read slow ({', '.join(paths[:4])} ...), more than faults explain: without a topology"
        " the longer kind of path cannot be told from a slow one; upload it and ask again",
    )


def _suspect(strategy: Strategy, finding: Finding) -> Suspect:
    ledger, component = strategy.ledger, finding.component
    touching = [p for p in ledger.judged() if set(component.members).issubset(p.members)]
    accusing = [p.number for p in touching if ledger.is_slow(p)]
    values = [ledger.value(number) for number in finding.tests]
    slowdown = median(ledger.slowdown(number) for number in finding.tests) if finding.tests else None
    return Suspect(
        kind=component.kind,
        members=list(component.members),
        slowdown=None if finding.hard or slowdown is None else round(slowdown, 3),
        slowdown_is_lower_bound=any(value.censored for value in values),
        confidence=1.0 if finding.hard else _confidence(strategy, component),
        accusing=accusing,
        acquitting=sorted({p.number for p in touching} - set(accusing)),
        alternatives=[str(c) for c in finding.alternatives],
    )


def _confidence(strategy: Strategy, component: Component) -> float:
    ledger = strategy.ledger
    slow = total = 0
    for probe in ledger.judged():
        if probe.purpose == str(component):
            above = [r.censored or r.value_ms > ledger.threshold(probe) for r in ledger.readings[probe.number]]
            slow, total = slow + sum(above), total + len(above)
    return round((slow + 1) / (total + 2), 3)


def _main_baseline(strategy: Strategy) -> float | None:
    """Baseline of the hop class that holds most cover probes."""
    ledger = strategy.ledger
    classes = [ledger.class_of(p.members) for p in ledger.judged() if p.phase == 1]
    return ledger.baselines[max(sorted(set(classes)), key=classes.count)] if classes else None


def _masked(strategy: Strategy) -> list[str]:
    """Paths at slow GPUs, where paths are tested at all."""
    hidden = strategy.evidence.slow_gpus if strategy.settings.paths_selectable else set()
    return [f"path:{rank}-*" for rank in sorted(hidden)]


def _untested(strategy: Strategy, *, complete: bool) -> list[str]:
    """What was neither cleared nor accused, from the cover's point of view; ``*`` stands for everything."""
    paths = strategy.settings.paths_selectable
    untested = [] if paths else ["path:*-*"]
    if not strategy.evidence.healthy_gpus.any():
        return sorted({*untested, "gpu:*", "path:*-*"})
    still_open: set[Component] = set()
    probes: Iterable[Probe] = strategy.ledger.probes.values()
    for probe in probes:
        if probe.phase == 1 and not (complete and probe.number not in strategy.evidence.slow_probes):
            still_open.update(strategy.evidence.open_in(probe.members))
    return untested + [str(c) for c in sorted(still_open)]


def _cost(strategy: Strategy, seconds: float) -> dict[str, float]:
    ledger, tokens = strategy.ledger, strategy.settings.tokens
    taken = {number: len(readings) for number, readings in ledger.readings.items() if readings}
    units = sum(ledger.probes[number].path_units * count for number, count in taken.items())
    return {
        "probes": len(taken),
        "measurements": sum(taken.values()),
        "path_units": units * tokens,
        "seconds": round(seconds, 3),
    }


def _summary(outcome: Outcome, suspects: list[Suspect], notes: list[Note], cost: dict[str, float]) -> str:
    effort = f"{cost['probes']:.0f} probes, {math.ceil(cost['seconds'])} s"
    if outcome == "localized":
        parts = ", ".join(_phrase(suspect) for suspect in suspects)
        return f"{parts} ({effort})"
    because = "; ".join(note.text for note in notes if note.open or outcome == "uniform_slowdown")
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
