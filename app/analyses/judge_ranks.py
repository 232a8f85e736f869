"""Judge lists: one value a rank, once, under several conditions, or in several rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from app.analyses.hop_classes import spread
from app.analyses.judging import LEAST, folded, inconclusive, suspect, times
from app.analyses.records import (
    Judgement,
    Label,
    PerRank,
    Reason,
    Rounds,
    Scenarios,
    Suspect,
    Sweeps,
    Totals,
)

_SIGMAS = 6.0
#: Lists are short: nothing is taken to be measured better than this.
_LEAST_NOISE = 0.03
#: With three values two agree on what is normal, but only just.
_LEAST_OF_THREE = float(np.log(1.5))
_ALIKE = 0.05


def judge_per_rank(record: PerRank) -> Judgement:
    """Judge one value a rank against the others of its class.

    Parameters
    ----------
    record : PerRank
        The values and their classes.
    """
    labels = list(record.values)
    if len(labels) < 2:
        return inconclusive("too_few", f"{record.metric}: one value alone has nothing to be compared with")
    if len(labels) == 2:
        return _two(record)
    excess = _excess(record)
    slow = _outliers(excess, len(labels))
    return _waiting(record, excess, slow) if record.wait else _slowest(record, excess, slow)


def _slowest(record: PerRank, excess: Mapping[Label, float], slow: Sequence[Label]) -> Judgement:
    class_effect = _whole_classes(record, slow)
    if class_effect:
        return inconclusive(
            "class_effect",
            f"{record.metric}: {class_effect} as a whole: a class of its own, or a cause they share",
        )
    if len(slow) > len(excess) / 3:
        return inconclusive(
            "two_levels", f"{record.metric}: {len(slow)} of {len(excess)} are slower: no clear majority"
        )
    if slow:
        part = record.topology.part_of(slow) if record.topology else None
        groups = [] if part else _slow_hosts(record, excess, slow)
        grouped = {label for group in groups for label in group.members}
        alone = [suspect(label, excess[label]) for label in slow if label not in grouped]
        zero = ", ".join(str(label) for label in slow if np.isinf(excess[label]))
        reasons = [Reason("measured_zero", f"{record.metric}: zero at {zero}")] if zero else []
        suspects, folding = ([*alone, *groups], []) if groups else folded(alone, record.topology)
        return Judgement("localized", suspects, [*reasons, *folding])
    return _nobody(record, excess)


def _slow_hosts(record: PerRank, excess: Mapping[Label, float], slow: Sequence[Label]) -> list[Suspect]:
    """Hosts that are slow as a whole: one group explains more than each of their ranks."""
    groups, slow_ones = [], set(slow)
    for group in _groups(record.values, record.hosts or {}):
        if len(group) > 1 and slow_ones.issuperset(group):
            level = float(np.median([excess[label] for label in group]))
            groups.append(Suspect("group", group, times(level), f"group {(record.hosts or {})[group[0]]}"))
    return groups


def _two(record: PerRank) -> Judgement:
    one, two = record.values.values()
    if min(one, two) > 0 and abs(np.log(one / two)) < _ALIKE:
        return Judgement("healthy", reasons=[Reason("all_alike", f"{record.metric}: both are alike")])
    return inconclusive(
        "no_reference", f"{record.metric}: two that differ need a reference to say which one is wrong"
    )


def _excess(record: PerRank) -> dict[Label, float]:
    """Logarithm against the median, higher is worse; the level of a class is taken out where it has a majority."""
    sign = -1.0 if record.bad == "low" or record.wait else 1.0
    with np.errstate(divide="ignore"):
        logs = {label: sign * float(np.log(value)) for label, value in record.values.items()}
    for classes in record.classes:
        groups = _groups(logs, classes)
        if len(groups) < 2 or min(map(len, groups)) < 3:
            continue
        for group in groups:
            # Those at zero are infinitely bad; a class in which all are keeps that.
            measured = [logs[label] for label in group if np.isfinite(logs[label])]
            level = float(np.median(measured)) if measured else 0.0
            for label in group:
                logs[label] -= level
        break
    level = float(np.median(list(logs.values())))
    return {label: value - level if np.isfinite(value - level) else value for label, value in logs.items()}


def _groups(labels: Mapping[Label, float], classes: Mapping[Label, str]) -> list[list[Label]]:
    """The labels of each class; none unless all labels have a class."""
    groups: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        if label not in classes:
            return []
        groups[classes[label]].append(label)
    return [groups[name] for name in sorted(groups)]


def _outliers(excess: Mapping[Label, float], n: int) -> list[Label]:
    finite = np.array([value for value in excess.values() if np.isfinite(value)])
    sigma = max(_LEAST_NOISE, spread(finite)) if finite.size else _LEAST_NOISE
    least = max(_LEAST_OF_THREE if n == 3 else LEAST, _SIGMAS * sigma)
    return [label for label, value in excess.items() if value >= least]


def _whole_classes(record: PerRank, slow: Sequence[Label]) -> str:
    """The classes that the slow ones fill entirely; empty unless they explain all of them."""
    slow_ones = set(slow)
    for classes in record.classes:
        groups = _groups(record.values, classes)
        full = [group for group in groups if len(group) > 1 and slow_ones.issuperset(group)]
        if full and len(groups) > 1 and sum(map(len, full)) == len(slow):
            return ", ".join(classes[group[0]] for group in full)
    return ""


def _waiting(record: PerRank, excess: Mapping[Label, float], slow: Sequence[Label]) -> Judgement:
    """Who waits least keeps the others waiting, if it is one alone and far from all others."""
    ordered = sorted(excess.values(), reverse=True)
    if len(slow) == 1 and len(excess) >= 4 and ordered[0] - ordered[1] >= np.log(2):
        label = slow[0]
        text = f"{record.metric}: {label} waits least, the others wait for it; its own slowdown is not in waits"
        return Judgement("localized", [suspect(label, None)], [Reason("waits_least", text)])
    if max(abs(value) for value in excess.values()) < LEAST:
        return Judgement("healthy", reasons=[Reason("all_alike", f"{record.metric}: all wait alike")])
    return inconclusive(
        "waits_differ", f"{record.metric}: waits differ, but nobody alone waits least: they do not name anyone"
    )


def _nobody(record: PerRank, excess: Mapping[Label, float]) -> Judgement:
    low, high = min(excess.values()), max(excess.values())
    if _two_halves(sorted(excess.values())):
        return inconclusive("two_levels", f"{record.metric}: two levels, and neither is that of most")
    if low <= -2 * LEAST and -low > 2 * high:
        text = f"{record.metric}: someone is faster than the rest, nobody is slower"
        return inconclusive("fast_outlier", text)
    if high >= 2 * LEAST:
        return inconclusive(
            "uneven", f"{record.metric}: values differ too much among themselves to call one of them slow"
        )
    return Judgement("healthy", reasons=[Reason("all_alike", f"{record.metric}: nobody is clearly slower")])


def _two_halves(ordered: Sequence[float]) -> bool:
    """Whether a clean gap divides the values into parts of a third or more each, so that neither is normal."""
    gaps = np.diff(ordered)
    widest = int(np.argmax(gaps))
    third = len(ordered) / 3
    inner = max(ordered[widest] - ordered[0], ordered[-1] - ordered[widest + 1])
    return bool(third <= widest + 1 <= len(ordered) - third and gaps[widest] >= max(LEAST, inner))


def judge_scenarios(record: Scenarios) -> Judgement:
    """Judge the same ranks under several conditions.

    Two ranks suffice where the values are the ranks' own work and a control shows that they are alike otherwise.
    """
    alike, named, open_reasons = [], {}, []
    alike_in: dict[Label, set[str]] = defaultdict(set)
    for name, run in record.runs:
        judgement = judge_per_rank(run)
        if judgement.outcome == "healthy":
            alike.append(name)
            for label in run.values:
                alike_in[label].add(name)
        elif judgement.suspects:
            named[name] = judgement.suspects
        else:
            open_reasons += judgement.reasons
    if record.own_work:
        for name, run in record.runs:
            # A condition in which both are alike is the control; it is another one, as here they differ.
            if name not in named and len(run.values) == 2:
                one, two = (alike_in[label] for label in run.values)
                if not one.isdisjoint(two):
                    named |= _against_control(name, run)
    suspects = {s.name: s for found in named.values() for s in found}
    if len(suspects) == 1:
        text = f"the same one in {', '.join(named)}" + (f"; alike in {', '.join(alike)}" if alike else "")
        return Judgement("localized", list(suspects.values()), [Reason("conditions", text)])
    if suspects:
        return inconclusive("conditions_disagree", f"different ones stand out: {', '.join(suspects)}")
    if open_reasons:
        return Judgement("inconclusive", reasons=open_reasons)
    return Judgement("healthy", reasons=[Reason("all_alike", "alike under every condition")])


def _against_control(name: str, run: PerRank) -> dict[str, list[Suspect]]:
    (a, one), (b, two) = run.values.items()
    if min(one, two) <= 0:
        return {}
    sign = 1 if run.bad == "high" else -1
    excess = sign * float(np.log(one / two))
    if abs(excess) < _LEAST_OF_THREE:
        return {}
    return {name: [suspect(a if excess > 0 else b, abs(excess))]}


def judge_rounds(record: Rounds) -> Judgement:
    """Judge node checks in pairs: who stays slow whatever it is paired with."""
    slow_in = [_slow_of_round(values) for values in record.rounds]
    hit = [slow for slow in slow_in if slow]
    repaired = [Reason("after_repair", "rounds after a repair are left out")] if record.after_repair else []
    if all(slow is None for slow in slow_in):
        text = "no round has three nodes or more with times above zero: nothing says which time is normal"
        return inconclusive("too_few", text, *repaired)
    if not hit:
        return Judgement(
            "healthy", reasons=[*repaired, Reason("all_alike", "no node is slow in any round of three or more")]
        )
    always = set.intersection(*hit)
    if not always or (len(hit) == 1 and (len(slow_in) > 1 or len(always) > 1)):
        text = "nodes were slow in one round only, and pairs hide which of two it was"
        return inconclusive("not_repeated", text, *repaired)
    suspects = []
    ever = set.union(*hit)
    clear = [v for values in record.rounds for node, v in values.items() if node not in ever]
    normal = float(np.median(clear or [min(values.values()) for values in record.rounds if values]))
    for label in sorted(always, key=str):
        best = min(
            values[label] for values, slow in zip(record.rounds, slow_in, strict=True) if label in (slow or ())
        )
        suspects.append(suspect(label, float(np.log(best / normal)) if normal > 0 else None))
    return Judgement(
        "localized", suspects, [*repaired, Reason("stays_slow", "slow in every round that had a slow node")]
    )


def _slow_of_round(values: Mapping[Label, float]) -> set[Label] | None:
    """Nodes far above the fast half: in a round of pairs up to half of the nodes can look slow.

    None where they cannot be compared.
    """
    known = sorted(values.values())
    if len(known) < 3 or known[0] <= 0:
        return None
    normal = float(np.median(known[: (len(known) + 1) // 2]))
    return {label for label, value in values.items() if value >= 1.5 * normal}


def judge_sweeps(record: Sweeps) -> Judgement:
    """Judge curves of bus bandwidth by their largest common sizes."""
    if len(record.curves) < 2:
        return inconclusive("aggregate_only", "one curve of a whole collective cannot name a rank or a path")
    common = sorted(set.intersection(*({size for size, _ in curve} for curve in record.curves.values())))
    if not common:
        return inconclusive("no_common_size", "the curves have no message size in common")
    top = set(common[-3:])
    levels = {
        label: float(np.median([value for size, value in curve if size in top]))
        for label, curve in record.curves.items()
    }
    if max(levels.values()) <= 1.1 * min(levels.values()):
        return Judgement("healthy", reasons=[Reason("all_alike", "all hosts reach the same bandwidth")])
    return judge_per_rank(PerRank(levels, "low", metric="bus bandwidth of large messages"))


def judge_totals(record: Totals) -> Judgement:
    """Judge totals of concurrent transfers: alike, or not; which part they share is not in totals."""
    by_metric: dict[str, list[float]] = defaultdict(list)
    for pattern in record.patterns:
        for metric, value in pattern.items():
            by_metric[metric].append(value)
    if all(len(values) < 2 for values in by_metric.values()):
        return inconclusive("too_few", "no total of one kind is there for two patterns")
    for metric, values in sorted(by_metric.items()):
        if min(values) <= 0 or np.log(max(values) / min(values)) >= LEAST:
            return inconclusive(
                "unsupported_kind", f"totals of concurrent {metric} differ; they do not name what is shared"
            )
    return Judgement("healthy", reasons=[Reason("all_alike", "every pattern reaches the same total")])
