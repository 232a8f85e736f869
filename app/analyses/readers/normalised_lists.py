"""Lists in a normalised document: pairs, values a rank, rounds, sweeps, totals."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app.analyses.errors import UnreadableInput
from app.analyses.readers.classes import hosts_of, nic_classes
from app.analyses.readers.fields import Document, Shape, is_number, is_numbered, labels_once, scalar
from app.analyses.readers.numbers import WAIT, is_load, is_wait, label, positive
from app.analyses.records import Label, PairList, PerRank, Record, Rounds, Scenarios, Sweeps, Totals, Unjudged

_OWN_WORK = re.compile(r"own|compute|work\b|forward|backward|gemm|step", re.IGNORECASE)
_HOST_NAME = re.compile(r"(host|node|machine|server)[ _-]?\w+", re.IGNORECASE)
_NIC_NAME = re.compile(r"(mlx|cxi|rdma|nic|ib|eth|hca|roce|ens|bond)\w*", re.IGNORECASE)
#: Who took part in a run, by number.
_ENDS = re.compile(r"(src|dst|source|dest(ination)?|from|to|gpus?|ranks?|id|run|pattern)([ _].*)?", re.IGNORECASE)
_REPAIR = re.compile(r"after|replac|repair|fix", re.IGNORECASE)


def read_pairs(document: Document) -> PairList:
    """``[[a, b, value], ...]``, with ``placement``, ``tags`` and ``reference`` (``"a|b"``) where known."""
    values = document.data["values"]
    if not isinstance(values, list) or not values:
        raise Shape("pairs must be a list of [a, b, value]")
    pairs: list[tuple[Label, Label, float]] = []
    for i, item in enumerate(values):
        if not isinstance(item, list) or len(item) < 3 or not all(isinstance(end, str | int) for end in item[:2]):
            raise Shape("pairs must be a list of [a, b, value]")
        place = f"values[{i}]"
        a, b = label(str(item[0])), label(str(item[1]))
        if a == b:
            raise UnreadableInput("bad_pair", f"{a} is paired with itself", place)
        pairs.append((a, b, positive(scalar(item[2], f"{place}[2]"), f"{place}[2]")))
    names = {str(end): label(str(end)) for item in values for end in item[:2]}
    placement = {names[name]: host for name, host in document.placement(list(names)).items()}
    return PairList(pairs, document.bad(), placement or None, _tags(document), _reference(document))


def _tags(document: Document) -> dict[str, frozenset[tuple[Label, Label]]]:
    given = document.data.get("tags")
    if not isinstance(given, Mapping):
        return {}
    return {
        str(tag): frozenset(
            (label(str(p[0])), label(str(p[1]))) for p in pairs if isinstance(p, list) and len(p) == 2
        )
        for tag, pairs in given.items()
        if isinstance(pairs, list)
    }


def _reference(document: Document) -> dict[tuple[Label, Label], float] | None:
    given = document.data.get("reference")
    if not isinstance(given, Mapping):
        return None
    reference: dict[tuple[Label, Label], float] = {}
    for name, value in given.items():
        ends = str(name).split("|")
        if len(ends) != 2:
            raise Shape('reference must be {"a|b": value}')
        place = f"reference.{name}"
        reference[label(ends[0]), label(ends[1])] = positive(scalar(value, place), place)
    return reference


def read_per_rank(document: Document) -> Record:
    """``{rank: value}``, ``{rank: [columns]}``, ``{rank: {metric: value}}`` or ``{condition: {rank: value}}``."""
    if is_load(document.unit):
        text = f"{document.unit!r} says what each was given, or when it was done, not how fast it was"
        return Unjudged("load_not_speed", text)
    values = document.data["values"]
    if isinstance(values, list) and all(map(is_number, values)):
        values = {str(i): value for i, value in enumerate(values)}
    if not isinstance(values, Mapping) or not values:
        raise Shape("values must name each rank")
    nested = [value for value in values.values() if isinstance(value, Mapping)]
    if nested and len(nested) < len(values):
        raise Shape("some ranks have one value and some several")
    if nested and _are_hosts(values):
        values = {f"{host}:{name}": value for host, inner in values.items() for name, value in inner.items()}
        return _one(document, values, "values")
    if nested and _are_conditions(values):
        runs = [(str(name), _one(document, run, f"values.{name}")) for name, run in values.items()]
        return Scenarios(runs, own_work=bool(_OWN_WORK.search(document.unit)) and not document.is_wait())
    if nested:
        metric = _metric(document, sorted(set.intersection(*(set(map(str, v)) for v in nested))))
        return _one(document, {name: value[metric] for name, value in values.items()}, "values", metric)
    if any(isinstance(value, list) for value in values.values()):
        return _columns(document, values)
    return _one(document, values, "values")


def _are_hosts(values: Mapping[str, Any]) -> bool:
    """Outer names are hosts when the inner ones are numbered ranks or NICs."""
    inner = [str(name) for run in values.values() for name in run]
    parts = all(is_numbered(name) or _NIC_NAME.match(name) for name in inner)
    return parts and all(_HOST_NAME.fullmatch(str(name)) for name in values)


def _are_conditions(values: Mapping[str, Any]) -> bool:
    """Outer names are conditions when the inner ones are the numbered ranks."""
    inner = [str(name) for run in values.values() for name in run]
    return all(map(is_numbered, inner)) and not all(map(is_numbered, map(str, values)))


def _metric(document: Document, metrics: Sequence[str]) -> str:
    if not metrics:
        raise Shape("no metric is there for every rank")
    best = max(
        metrics, key=lambda m: (_common_words(m, document.unit), bool(_OWN_WORK.search(m)), not WAIT.search(m))
    )
    if not _common_words(best, document.unit) and not _OWN_WORK.search(best) and len(metrics) > 1:
        raise Shape("which of the metrics to judge is not stated in the unit")
    return best


def _common_words(one: str, two: str) -> int:
    words = [set(re.findall(r"[a-z]+/?[a-z]*", text.lower())) for text in (one, two)]
    return len(words[0] & words[1])


def _columns(document: Document, values: Mapping[str, Any]) -> PerRank:
    """The column that the unit speaks of; the others are not judged."""
    names = document.data.get("columns")
    width = {len(value) if isinstance(value, list) else 1 for value in values.values()}
    if len(width) > 1:
        raise UnreadableInput("ragged_matrix", "every rank must have the same number of values", "values")
    count = width.pop()
    index = 0
    if isinstance(names, list) and len(names) == count and count:
        common = [_common_words(str(name), document.unit) for name in names]
        if count > 1 and not any(common):
            raise Shape("which of the columns to judge is not stated in the unit")
        index = common.index(max(common))
    elif count == 0:
        raise Shape("the ranks have no values")
    elif count > 1:
        return _one(document, {name: _middle(value, f"values.{name}") for name, value in values.items()}, "values")
    chosen = {name: value[index] if isinstance(value, list) else value for name, value in values.items()}
    return _one(document, chosen, "values")


def _middle(repeats: object, place: str) -> float:
    """Median of a rank's repeats, where nothing names its values one by one."""
    assert isinstance(repeats, list)
    return median(scalar(value, f"{place}[{i}]") for i, value in enumerate(repeats))


def _one(document: Document, values: Mapping[str, Any], field: str, metric: str = "") -> PerRank:
    names = labels_once(list(map(str, values)), field)
    known = {
        names[str(name)]: scalar(value, f"{field}.{name}") for name, value in values.items() if value is not None
    }
    wait = is_wait(metric) if metric else document.is_wait()
    classes = _position(document, names)
    labels = list(known)
    placed = {names[name]: host for name, host in document.placement(list(names)).items()}
    classes += nic_classes(labels)
    hosts = hosts_of(labels, placed)
    return PerRank(known, document.bad(), wait, classes, hosts, metric or document.unit or "value")


def _position(document: Document, names: Mapping[str, Label]) -> list[dict[Label, str]]:
    """Pipeline stages, and other such coordinates, but not the replica number (dp): all replicas are alike."""
    given = document.data.get("position")
    if not isinstance(given, Mapping):
        return []
    classes: dict[str, dict[Label, str]] = defaultdict(dict)
    for name, place in given.items():
        if name in names and isinstance(place, Mapping):
            for axis in place.keys() - {"dp"}:
                classes[axis][names[name]] = f"{axis} {place[axis]}"
    return [classes[axis] for axis in sorted(classes)]


def read_rounds(document: Document) -> Rounds:
    """``[{node: seconds}, ...]``; rounds whose label speaks of a repair are left out, and those after them."""
    values = document.data["values"]
    names = document.data.get("labels")
    if isinstance(values, Mapping):
        names, values = list(values), list(values.values())
    if not isinstance(values, list) or not all(isinstance(r, Mapping) for r in values):
        raise Shape("rounds must be a list of {node: seconds}")
    labels = [str(name) for name in names] if isinstance(names, list) else []
    repaired = next((i for i, name in enumerate(labels) if _REPAIR.search(name)), len(values))
    rounds = []
    for i, values_of_round in enumerate(values[:repaired]):
        tags = labels_once(list(map(str, values_of_round)), f"values[{i}]")
        rounds.append({tags[str(k)]: scalar(v, f"values[{i}].{k}") for k, v in values_of_round.items()})
    return Rounds(rounds, after_repair=len(values) - repaired)


def read_sweeps(document: Document) -> Sweeps:
    """``[[bytes, bandwidth, ...], ...]`` or one such list a host."""
    values = document.data["values"]
    curves = values if isinstance(values, Mapping) else {"all": values}
    known: dict[Label, list[tuple[float, float]]] = {}
    for name, curve in curves.items():
        if not isinstance(curve, list) or not all(isinstance(p, list) and len(p) >= 2 for p in curve):
            raise Shape("a sweep must be a list of [bytes, bandwidth]")
        place = f"values.{name}"
        if len(curves) > 1 and not (_HOST_NAME.fullmatch(str(name)) or is_numbered(str(name))):
            raise Shape("curves that are not of hosts or ranks are conditions, which name nobody")
        known[label(str(name))] = [(scalar(p[0], place), scalar(p[1], place)) for p in curve]
    return Sweeps(known)


def read_totals(document: Document) -> Totals:
    """``[{"src", "dst", metric: total, ...}, ...]``."""
    values = document.data["values"]
    if not isinstance(values, list) or not all(isinstance(p, Mapping) for p in values) or not values:
        raise Shape("runs must be a list of objects")
    patterns = [
        {
            str(k): scalar(v, f"values[{i}].{k}")
            for k, v in pattern.items()
            if is_number(v) and not _ENDS.fullmatch(str(k))
        }
        for i, pattern in enumerate(values)
    ]
    if not any(patterns):
        raise Shape("the runs hold no totals")
    return Totals(patterns)
