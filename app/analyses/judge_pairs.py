"""Judge a list of pairs: most pairs of a fleet were never measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from app.analyses.judge_matrix import judge_matrix
from app.analyses.judging import LEAST, folded, inconclusive, label_order, slow_path, suspect
from app.analyses.records import Judgement, Label, PairList, PathMatrix, Reason, Suspect
from app.analyses.topology import Topology

#: From this share of all pairs on, the list is a matrix with holes.
_NEARLY_ALL = 0.8
#: Pairs within a leaf, and across leaves, that it takes to compare them apart.
_LEAST_CLASS = 4
#: Pairs that it takes to say what is normal for a path.
_LEAST_FAST = 3
_TIGHT = float(np.log(1.15))

Pair = tuple[Label, Label]


def judge_pairs(record: PairList) -> Judgement:
    """Judge a list of pairs.

    Parameters
    ----------
    record : PairList
        Values positive.

    Notes
    -----
    A component is accused when all that it is part of is slow and all others that are in it are cleared elsewhere.
    """
    labels = sorted({end for a, b, _ in record.pairs for end in (a, b)}, key=label_order)
    levels = _levels(record)
    n = len(labels)
    if n >= 4 and len(levels) >= _NEARLY_ALL * n * (n - 1) / 2:
        return _as_matrix(record, labels)
    hop = _hop_classes(record, levels)
    if len(hop) > 1:
        reasons = [
            Reason(
                "hop_classes",
                "pairs within a host, across hosts and, where stated, across leaves were compared apart",
            )
        ]
        answers = [_judge_class(part, record) for part in hop]
        # Whoever is slow in several classes is one suspect.
        named = {s.name: s for answer in answers for s in answer.suspects}
        reasons += [reason for answer in answers for reason in answer.reasons]
        suspects, folding = folded(list(named.values()), record.topology)
        reasons += folding
        healthy = all(answer.outcome == "healthy" for answer in answers)
        outcome = "localized" if suspects else "healthy" if healthy else "inconclusive"
        return Judgement(outcome, suspects, reasons)  # type: ignore[arg-type]
    return _judge_class(levels, record)


def _levels(record: PairList) -> dict[Pair, float]:
    """Undirected pair to badness in logarithm: median of its repeats, against its reference if it has one."""
    sign = 1 if record.bad == "high" else -1
    seen: dict[Pair, list[float]] = defaultdict(list)
    for a, b, value in record.pairs:
        first, second = sorted((a, b), key=label_order)
        seen[first, second].append(sign * float(np.log(value)))
    levels = {pair: float(np.median(values)) for pair, values in seen.items()}
    for (a, b), value in (record.reference or {}).items():
        first, second = sorted((a, b), key=label_order)
        if (first, second) in levels:
            levels[first, second] -= sign * float(np.log(value))
    return levels


def _as_matrix(record: PairList, labels: Sequence[Label]) -> Judgement:
    index = {label: i for i, label in enumerate(labels)}
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    for a, b, value in record.pairs:
        cells[index[a], index[b]].append(value)
    values = np.full((len(labels), len(labels)), np.nan)
    for (i, j), several in cells.items():
        values[i, j] = float(np.median(several))
    values = np.where(np.isnan(values), values.T, values)
    hosts = record.placement or {}
    placement = [hosts[label] for label in labels] if all(label in hosts for label in labels) else None
    one_host = placement is not None and len(set(placement)) == 1
    topology = record.topology if record.topology and record.topology.covers(labels) else None
    matrix = PathMatrix(labels, values, record.bad, placement, one_host, title="all pairs", topology=topology)
    return judge_matrix(matrix)


def _hop_classes(record: PairList, levels: dict[Pair, float]) -> list[dict[Pair, float]]:
    hosts = record.placement or {}
    if any(end not in hosts for pair in levels for end in pair):
        return [levels]
    inside = {pair: level for pair, level in levels.items() if hosts[pair[0]] == hosts[pair[1]]}
    across = {pair: level for pair, level in levels.items() if pair not in inside}
    return [part for part in (inside, *_by_leaf(record, across)) if part]


def _by_leaf(record: PairList, across: dict[Pair, float]) -> list[dict[Pair, float]]:
    """Pairs across hosts, apart where they cross leaves, too, and both kinds have enough to be compared."""
    leaves = record.topology.leaves() if record.topology else {}
    if any(end not in leaves for pair in across for end in pair):
        return [across]
    under = {pair: level for pair, level in across.items() if leaves[pair[0]] == leaves[pair[1]]}
    beyond = {pair: level for pair, level in across.items() if pair not in under}
    return [across] if min(len(under), len(beyond)) < _LEAST_CLASS else [under, beyond]


def _judge_class(levels: dict[Pair, float], record: PairList) -> Judgement:
    if len(levels) < 3:
        return inconclusive("too_few", "fewer than three pairs of one kind: nothing says which level is normal")
    values = sorted(levels.values())
    if values[-1] - values[0] < LEAST:
        return Judgement("healthy", reasons=[Reason("all_alike", f"all {len(values)} pairs are alike")])
    cut = _cut(values)
    if cut is None:
        return inconclusive(
            "no_reference", "the pairs fall into no clear normal level that at least two of them share"
        )
    slow = {pair for pair, level in levels.items() if level > cut}
    for tag, tagged in record.tags.items():
        if {tuple(sorted(pair, key=label_order)) for pair in tagged} == slow:
            return inconclusive(
                "hop_classes", f"slow are exactly the pairs tagged {tag}: a hop class, not a fault"
            )
    return _explain(levels, slow, record.topology)


def _cut(values: list[float]) -> float | None:
    """Between a tight normal level of at least two pairs and all that is clearly slower."""
    gaps = np.diff(values)
    widest = int(np.argmax(gaps))
    normal = values[: widest + 1]
    if gaps[widest] < LEAST or len(normal) < 2 or normal[-1] - normal[0] > _TIGHT:
        return None
    return (values[widest] + values[widest + 1]) / 2


def _explain(levels: dict[Pair, float], slow: set[Pair], topology: Topology | None) -> Judgement:
    cleared = {end for pair in levels if pair not in slow for end in pair}
    normal = float(np.median([level for pair, level in levels.items() if pair not in slow]))
    partners: dict[Label, set[Pair]] = defaultdict(set)
    slow_of: dict[Label, set[Pair]] = defaultdict(set)
    for pair in slow:
        for end, other in (pair, pair[::-1]):
            slow_of[end].add(pair)
            if end not in cleared and other in cleared:
                partners[end].add(pair)
    suspects: list[Suspect] = []
    explained: set[Pair] = set()
    for end, pairs in sorted(partners.items(), key=lambda item: label_order(item[0])):
        if len(pairs) >= 2:
            suspects.append(suspect(end, float(np.median([levels[pair] for pair in pairs])) - normal))
            explained |= slow_of[end]
    fast = Counter(end for pair in levels if pair not in slow for end in pair)
    for pair in sorted(slow - explained, key=str):
        # One fast pair clears an end with no other slow one: were it slow, all its pairs would be.
        once = all(fast[end] and len(slow_of[end]) == 1 for end in pair) and len(levels) - len(slow) >= _LEAST_FAST
        if once or all(fast[end] >= 2 for end in pair):
            suspects.append(slow_path(*pair, levels[pair] - normal))
            explained.add(pair)
    left = [f"{a}-{b}" for a, b in sorted(slow - explained, key=str)]
    reasons = (
        [Reason("unresolved", f"slow, but an end was not seen fast elsewhere: {', '.join(left)}")] if left else []
    )
    suspects, folding = folded(suspects, topology)
    reasons += folding
    if suspects and len(suspects) > max(2, len(levels) // 4):
        return inconclusive("too_many_suspects", f"{len(suspects)} components would have to be slow at once")
    return Judgement("localized" if suspects else "inconclusive", suspects, reasons)
