"""Tables whose rows are ranks (or nodes, NICs, engines...): once, step by step, or under several conditions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.classes import hosts_of, nic_classes
from app.analyses.readers.numbers import WAIT, bad_side, is_load, is_missing, is_summary, is_wait, label, number
from app.analyses.readers.table import Row, Table
from app.analyses.readers.units import check_units, factors
from app.analyses.records import Bad, Label, PerRank, Reason, Record, Scenarios, Unjudged

_HOST = r"^(host|node|machine|server|instance|pod)([ _]?(name|id))?$"
_PART = r"^((global|local)[ _]?)?(rank|gpu|worker|device|nic|name|id|engine|process)([ _]?id)?$"
_CLASS = r"^(pp|stage|pipeline[ _]?stage|tier|class)$"
_COORDINATES = r"^(stage|dp(_rank)?|tp(_rank)?|pp(_rank)?)$"
_STEP = r"^(train(ing)?[ _])?(step|iter|iteration|round|epoch|batch|repeat|sample)([ _]?(id|no|num|index))?$"
_STEPS = r"^(step|iter|iteration|round)[ _]?\d+$"
_WIDE = r"^(rank|gpu|node|host|worker)[ _]?\d+$"
_OWN_WORK = re.compile(
    r"compute|gemm|forward|backward|fwd|bwd|own|work|step|kernel|optimizer|input|data_?load|h2d", re.IGNORECASE
)
_NOT_A_VALUE = r"start|stamp|seed|count|bytes$|^dp|after_fix|version|date"
_CENTRE = re.compile(r"\b(avg|average|mean|median|p50)\b", re.IGNORECASE)
_SPREAD = re.compile(r"\b(min|max|std|stddev|stdev|p9\d+)\b", re.IGNORECASE)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
#: Work that differs by less than this share of all the work slows nobody.
_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class _Metric:
    """Columns that are read together, a name for them, and which of their values are bad."""

    columns: Sequence[int]
    name: str
    bad: Bad


def is_per_rank(table: Table) -> bool:
    """Whether a column names the components of the rows."""
    return any(table.column(pattern) is not None for pattern in (_PART, _HOST, _COORDINATES))


def read_per_rank(table: Table) -> tuple[Record, list[Reason]]:
    """Values of the rows' components, without rows that sum up; and what was left out.

    Raises
    ------
    UnreadableInput
        When no column has a unit, a component stands there twice, or a value is none.
    """
    table, notes = _without_summaries(table)
    scenario = table.column(r"^(scenario|condition|run|case)$")
    if scenario is not None:
        return _scenarios(table, scenario), notes
    metrics, others = _metrics(table)
    if not metrics:
        if any(map(is_load, table.header)):
            text = "the columns say what each was given, or when it was done, not how fast it was"
            return Unjudged("load_not_speed", text), notes
        raise UnreadableInput(
            "unit_missing", "no column of values names its unit (s, ms, us, GB/s)", at_line(table.line)
        )
    names, hosts = _names(table)
    records = _worthwhile([_values(table, names, hosts, metric) for metric in metrics])
    unmeasured = [str(name) for name in dict.fromkeys(names) if name not in records[0].values]
    if unmeasured:
        notes.append(Reason("not_measured", f"no value, so not judged: {', '.join(unmeasured)}"))
    left = [*others, *(metric.name for metric in metrics if metric.name not in {r.metric for r in records})]
    if left:
        notes.append(Reason("columns_left_out", f"not judged: {', '.join(left)}"))
    if len(records) == 1:
        return records[0], notes
    return Scenarios([(record.metric, record) for record in records]), notes


def read_wide(table: Table) -> PerRank | None:
    """A row a step and a column a rank: the median of each column; None where the table is no such one.

    Raises
    ------
    UnreadableInput
        When the header of the steps does not say what was measured, as ``step (ms)`` does.
    """
    step, _, unit = table.header[0].partition("(")
    columns = table.columns(_WIDE)
    if not re.search(rf"{_STEP}|^time", step.strip(), re.IGNORECASE) or len(columns) < 2:
        return None
    if len(columns) < len(table.header) - 1:
        return None
    bad = bad_side(unit)
    if bad is None:
        text = "the columns have no unit: write it behind the name of the first, as in 'step (ms)'"
        raise UnreadableInput("unit_missing", text, at_line(table.line))
    values = {}
    for i in columns:
        cells = [
            number(row.cells[i], at_line(row.line, i + 1)) for row in table.rows if not is_missing(row.cells[i])
        ]
        if cells:
            values[label(table.header[i])] = float(np.median(cells))
    return PerRank(values, bad, is_wait(unit), metric=f"{step.strip()} ({unit}")


def _without_summaries(table: Table) -> tuple[Table, list[Reason]]:
    column = table.column(_PART) if table.column(_PART) is not None else table.column(_HOST)
    if column is None:
        return table, []
    summing = [row for row in table.rows if is_summary(label(row.cells[column]))]
    if not summing:
        return table, []
    names = ", ".join(row.cells[column] for row in summing)
    kept = [row for row in table.rows if row not in summing]
    return replace(table, rows=kept), [Reason("rows_left_out", f"rows that sum up the others: {names}")]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _metrics(table: Table) -> tuple[list[_Metric], list[str]]:
    """What to judge: repeated steps together, else the rank's own work, else the first column with a unit.

    Then the names of other columns with units.
    """
    steps = table.columns(_STEPS)
    if len(steps) > 1:
        sides = {bad_side(_words(table.header[i])) for i in steps} - {None}
        return [_Metric(steps, "step time", sides.pop() or "high" if sides else "high")], []
    known = [
        _Metric([i], name, side)
        for i, name in enumerate(table.header)
        if i not in _no_values(table) and (side := bad_side(_words(name))) is not None
    ]
    known = known or _by_unit_column(table)
    own = _central([m for m in known if _OWN_WORK.search(m.name) and not WAIT.search(m.name)])
    chosen = own or _central(known)[:1]
    if len(chosen) > 1 and not all(_seconds(metric.name) for metric in chosen):
        chosen = chosen[:1]
    return chosen, [metric.name for metric in known if metric not in chosen]


def _no_values(table: Table) -> set[int]:
    patterns = (_NOT_A_VALUE, _PART, _HOST, _CLASS, _STEP, r"_rank$")
    load = (i for i, name in enumerate(table.header) if is_load(name))
    return {i for pattern in patterns for i in table.columns(pattern)}.union(load)


def _by_unit_column(table: Table) -> list[_Metric]:
    """Columns of numbers where a column ``unit`` says the same in each row."""
    unit = table.column(r"^units?$")
    if unit is None or not table.rows:
        return []
    sides = {bad_side(row.cells[unit]) for row in table.rows}
    if len(sides) > 1:
        raise UnreadableInput("mixed_units", "rows have different units", at_line(table.line))
    side = sides.pop()
    left = [i for i in range(len(table.header)) if i not in {*_no_values(table), unit}]
    return [_Metric([i], table.header[i], side) for i in left if side is not None]


def _central(metrics: Sequence[_Metric]) -> list[_Metric]:
    """Averages and medians where columns hold them, not the extremes beside them."""
    centres = [metric for metric in metrics if _CENTRE.search(_words(metric.name))]
    inner = [metric for metric in metrics if not _SPREAD.search(_words(metric.name))]
    return centres or inner or list(metrics)


def _seconds(name: str) -> float | None:
    """The unit of a time in the name of its column, in seconds."""
    words = re.findall(r"[a-zµμ]+", _words(name).lower())
    return next((_SECONDS[word] for word in reversed(words) if word in _SECONDS), None)


def _worthwhile(records: Sequence[PerRank]) -> Sequence[PerRank]:
    """Those of several times that differ by enough of the whole to slow anyone; the first if none does."""
    if len(records) < 2:
        return records
    levels = []
    for record in records:
        values = np.array(list(record.values.values())) * (_seconds(record.metric) or 0.0)
        levels.append((float(np.median(values)), float(np.max(values) - np.median(values))))
    whole = sum(level for level, _ in levels)
    kept = [r for r, (_, more) in zip(records, levels, strict=True) if more >= _SHARE * whole]
    return kept or records[:1]


def _values(table: Table, names: Sequence[Label], host_names: Mapping[Label, str], metric: _Metric) -> PerRank:
    known: dict[Label, list[float]] = defaultdict(list)
    for i in metric.columns:
        check_units(((row.cells[i], at_line(row.line, i + 1)) for row in table.rows), table.header[i])
    unit = table.column(r"^units?$")
    stated = [(row.cells[unit] if unit is not None else "", at_line(row.line)) for row in table.rows]
    for name, row, factor in zip(names, table.rows, factors(stated), strict=True):
        cells = [(row.cells[i], at_line(row.line, i + 1)) for i in metric.columns]
        known[name] += [factor * number(text, place) for text, place in cells if not is_missing(text)]
    values = {name: float(np.median(found)) for name, found in known.items() if found}
    stage = table.column(_CLASS)
    classes: list[dict[Label, str]] = []
    if stage is not None:
        classes.append({name: row.cells[stage] for name, row in zip(names, table.rows, strict=True)})
    classes += nic_classes(list(values))
    hosts = hosts_of(list(values), host_names)
    return PerRank(values, metric.bad, is_wait(metric.name), classes, hosts, metric.name)


def _names(table: Table) -> tuple[list[Label], dict[Label, str]]:
    """Name of each row's component and the hosts of those whose host is known.

    Raises
    ------
    UnreadableInput
        When one stands there twice, or twice for a step.
    """
    part, host = table.column(r"^(global[ _]?)?rank([ _]?id)?$"), table.column(_HOST)
    part = table.column(_PART) if part is None else part
    column = host if part is None else part
    if column is not None:
        names = [label(row.cells[column]) for row in table.rows]
    else:
        keys = table.columns(_COORDINATES)
        names = [" ".join(f"{table.header[k]} {row.cells[k]}" for k in keys) for row in table.rows]
    hosts: dict[Label, str] = {}
    if part is not None and host is not None:
        if _on_several(names, [row.cells[host] for row in table.rows]):
            names = [f"{row.cells[host]}:{name}" for name, row in zip(names, table.rows, strict=True)]
        hosts = {name: row.cells[host] for name, row in zip(names, table.rows, strict=True)}
    _check_once(names, table)
    return names, hosts


def _on_several(names: Sequence[Label], hosts: Sequence[str]) -> bool:
    """Whether a name stands for components of several hosts."""
    return len(set(zip(names, hosts, strict=True))) > len(set(names))


def _check_once(names: Sequence[Label], table: Table) -> None:
    step = table.column(_STEP)
    seen: set[tuple[Label, str]] = set()
    for name, row in zip(names, table.rows, strict=True):
        key = name, row.cells[step] if step is not None else ""
        if key in seen:
            once = f" in {table.header[step]} {key[1]}" if step is not None else ""
            raise UnreadableInput("named_twice", f"{name} stands there twice{once}", at_line(row.line))
        seen.add(key)


def _scenarios(table: Table, scenario: int) -> Scenarios:
    rank, metric = table.column(_PART), table.column(r"^metric$")
    rank = table.column(_HOST) if rank is None else rank
    taken = {scenario, rank, metric}
    value = next((i for i in range(len(table.header)) if i not in taken and bad_side(table.header[i])), None)
    side = bad_side(table.header[value]) if value is not None else None
    if rank is None or value is None or side is None:
        text = "conditions need columns rank and a value with its unit"
        raise UnreadableInput("unknown_format", text, at_line(table.line))
    runs: dict[tuple[str, str], dict[Label, float]] = defaultdict(dict)
    for row in table.rows:
        key = row.cells[scenario], row.cells[metric] if metric is not None else ""
        _add(runs[key], row, rank, value, " ".join(key))
    records = [
        (name, PerRank(values, side, bool(WAIT.search(key[1])), metric=f"{key[0]} {key[1]}"))
        for key, values in runs.items()
        for name in (f"{key[0]} {key[1]}".strip(),)
    ]
    return Scenarios(records, own_work=not any(WAIT.search(key[1]) for key in runs))


def _add(run: dict[Label, float], row: Row, rank: int, value: int, condition: str) -> None:
    name = label(row.cells[rank])
    if name in run:
        text = f"{name} stands there twice for {condition}"
        raise UnreadableInput("named_twice", text, at_line(row.line))
    run[name] = number(row.cells[value], at_line(row.line))
