"""What the paper's strategies report: suspects by threshold, with the probes that accuse and acquit them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from app.localization.components import Component
from app.localization.evidence import Evidence, Finding
from app.localization.ledger import Ledger
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.strategies.base import Note, Report, Suspect

# More slow paths than this, with nothing known of where the GPUs sit, are rather the longer kind of path.
MAX_PATHS_WITHOUT_TOPOLOGY = 8


def threshold_report(ledger: Ledger, evidence: Evidence, notes: list[Note], *, complete: bool) -> Report:
    """Make the report of a strategy that judges by alpha x baseline."""
    settings, notes = ledger.settings, list(notes)
    suspects = [_suspect(ledger, f) for _, f in sorted(evidence.findings.items())]
    if settings.hosts is None and sum(s.kind == "path" for s in suspects) > MAX_PATHS_WITHOUT_TOPOLOGY:
        notes.append(_needs_topology(suspects))
        suspects = [s for s in suspects if s.kind == "gpu"]
    baseline = _main_baseline(ledger)
    uniform = None if suspects or not complete else slower_than_history(settings, baseline)
    return Report(
        suspects=suspects,
        masked=_masked(evidence),
        untested=_untested(ledger, evidence, complete=complete),
        detectable=detectable(settings, baseline),
        baseline_ms=None if baseline is None else round(baseline, 3),
        notes=[*notes, *([uniform] if uniform else [])],
        uniform=uniform is not None,
    )


def detectable(settings: Settings, baseline: float | None) -> dict[str, float | None]:
    """The smallest faults a probe of k GPUs can show at this threshold, at best.

    With r = k - 1 paths a sender, a path slowed by s adds at most (s - 1)/r of the probe under serial transport
    and (s - r)/r under shared transport (DESIGN section 5, dilution); the worse of both is given. A slow
    GPU is not diluted. An added delay counts in full.
    """
    alpha, r = settings.alpha, settings.k - 1
    path = max(1 + (alpha - 1) * r, alpha * r) if settings.paths_selectable else None
    return {
        "gpu": round(alpha, 3),
        "path": None if path is None else round(path, 3),
        "delay_ms": None if baseline is None or path is None else round((alpha - 1) * baseline, 3),
    }


def slower_than_history(settings: Settings, baseline: float | None, least: float = 1.0) -> Note | None:
    """History decides only this: everything is slower than an earlier healthy job (DESIGN section 5).

    Parameters
    ----------
    least : float
        A factor that the noise does not explain, where that is known; alpha is one in any case.
    """
    history = settings.history_ms
    if history is None or baseline is None or baseline <= max(settings.alpha, least) * history:
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


def _suspect(ledger: Ledger, finding: Finding) -> Suspect:
    component = finding.component
    touching = [p for p in ledger.judged() if set(component.members).issubset(p.members)]
    accusing = [p.number for p in touching if ledger.is_slow(p)]
    values = [ledger.value(number) for number in finding.tests]
    slowdown = median(ledger.slowdown(number) for number in finding.tests) if finding.tests else None
    return Suspect(
        kind=component.kind,
        members=list(component.members),
        slowdown=None if finding.hard or slowdown is None else round(slowdown, 3),
        slowdown_is_lower_bound=any(value.censored for value in values),
        confidence=1.0 if finding.hard else _confidence(ledger, component),
        accusing=accusing,
        acquitting=sorted({p.number for p in touching} - set(accusing)),
        alternatives=[str(c) for c in finding.alternatives],
    )


def _confidence(ledger: Ledger, component: Component) -> float:
    slow = total = 0
    for probe in ledger.judged():
        if probe.purpose == str(component):
            above = [r.censored or r.value_ms > ledger.threshold(probe) for r in ledger.readings[probe.number]]
            slow, total = slow + sum(above), total + len(above)
    return round((slow + 1) / (total + 2), 3)


def _main_baseline(ledger: Ledger) -> float | None:
    """Baseline of the hop class that holds most cover probes."""
    classes = [ledger.class_of(p.members) for p in ledger.judged() if p.phase == 1]
    return ledger.baselines[max(sorted(set(classes)), key=classes.count)] if classes else None


def _masked(evidence: Evidence) -> list[str]:
    """Paths at slow GPUs, where paths are tested at all."""
    hidden = evidence.slow_gpus if evidence.settings.paths_selectable else set()
    return [f"path:{rank}-*" for rank in sorted(hidden)]


def _untested(ledger: Ledger, evidence: Evidence, *, complete: bool) -> list[str]:
    """What was neither cleared nor accused, from the cover's point of view; ``*`` stands for everything."""
    paths = ledger.settings.paths_selectable
    untested = [] if paths else ["path:*-*"]
    if not evidence.healthy_gpus.any():
        return sorted({*untested, "gpu:*", "path:*-*"})
    still_open: set[Component] = set()
    probes: Iterable[Probe] = ledger.probes.values()
    for probe in probes:
        if probe.phase == 1 and not (complete and probe.number not in evidence.slow_probes):
            still_open.update(evidence.open_in(probe.members))
    return untested + [str(c) for c in sorted(still_open)]
