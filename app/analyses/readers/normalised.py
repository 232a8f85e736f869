"""Normalised JSON: ``kind``, ``unit``, ``higher_is_worse``, ``values``, and what else is known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from app.analyses.errors import UnreadableInput
from app.analyses.readers import normalised_lists as lists
from app.analyses.readers import normalised_ports as ports
from app.analyses.readers.fields import Document, Shape
from app.analyses.readers.matrix_cells import MAX_RANKS, check_values
from app.analyses.records import Matrix, MatrixSet, PathMatrix, Reading, Reason, Record, Unjudged

FORMAT = "normalised"

_WAIT = re.compile(r"wait|idle|barrier|blocked|recv cost", re.IGNORECASE)
_NOT_JUDGED = {
    "run_list": "whole runs under different conditions do not name a component",
    "engine_metrics": "counts of requests show how load was spread, not who is slow",
    "topology": "a topology alone measures nothing",
    "trials": "outcomes of trials show what failed together, not what is slow",
}


def read_normalised(text: str) -> Reading:
    """Read a normalised document.

    Raises
    ------
    UnreadableInput
        Naming the line for broken JSON, else the field.
    """
    data = load_object(text)
    document = Document(data)
    if not isinstance(data.get("kind"), str):
        raise UnreadableInput("missing_field", "kind must be a text such as path_matrix", "kind")
    kind = data["kind"]
    if kind in _NOT_JUDGED:
        return Reading(f"{FORMAT}:{kind}", Unjudged("unsupported_kind", f"{kind}: {_NOT_JUDGED[kind]}"))
    reader = _READERS.get(kind)
    if reader is None:
        known = ", ".join(sorted({*_READERS, *_NOT_JUDGED}))
        text = f"{kind!r} is not a kind that is judged; those are {known}"
        return Reading(f"{FORMAT}:{kind[:40]}", Unjudged("unsupported_kind", text))
    if "values" not in data:
        raise UnreadableInput("missing_field", "values must hold the measurements", "values")
    try:
        record: Record = reader(document)
    except Shape as shape:
        record = Unjudged("unsupported_shape", f"{kind}: {shape}")
    notes = _partial(document, record)
    return Reading(f"{FORMAT}:{kind}", record, notes)


def load_object(text: str) -> dict[str, Any]:
    """A JSON object without repeated keys, and without halves of surrogate pairs: they cannot be sent on.

    Raises
    ------
    UnreadableInput
        Naming line and column, or the key that stands there twice.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once)
        if re.search(r"\\u[dD]", text):
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnreadableInput("broken_json", r"an escape such as \ud800 stands for no character") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UnreadableInput("broken_json", f"the JSON ends or breaks here ({error.msg})", place) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, UnreadableInput):
            raise
        raise UnreadableInput(
            "broken_json", "the JSON cannot be read: nested too deep or a number too long"
        ) from None
    if not isinstance(data, dict):
        raise UnreadableInput("broken_json", "the JSON must be one object")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            key.encode()
            raise UnreadableInput("named_twice", f"{key!r} stands there twice", key[:80])
        seen[key] = value
    return seen


def _matrix(document: Document) -> Record:
    values = _cells(document.data["values"], "values")
    n = len(values)
    bad = document.bad()
    # The latency of a collective between two is no wait for a third.
    wait = bad == "high" and bool(_WAIT.search(document.unit))
    check_values(values, "values", wait=wait)
    placement = document.placement([str(i) for i in range(n)])
    baseline = None
    if document.data.get("baseline") is not None:
        baseline = _cells(document.data["baseline"], "baseline")
        check_values(baseline, "baseline", wait=False)
        if baseline.shape != values.shape:
            raise UnreadableInput("ragged_matrix", f"baseline must be {n} x {n} as values are", "baseline")
    hosts = [placement[str(i)] for i in range(n)] if len(placement) == n else None
    matrix = PathMatrix(
        list(range(n)),
        values,
        bad,
        hosts,
        hosts is not None and len(set(hosts)) == 1,
        baseline,
        in_gb=document.unit == "GB/s",
        wait=wait,
    )
    return MatrixSet([matrix])


def _cells(rows: object, field: str) -> Matrix:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise Shape("a matrix must be a list of rows")
    n = len(rows)
    if n > MAX_RANKS:
        raise UnreadableInput("too_large", f"{n} rows; at most {MAX_RANKS} ranks are analysed", field)
    for i, row in enumerate(rows):
        if len(row) != n:
            raise UnreadableInput("ragged_matrix", f"has {len(row)} cells, {n} expected", f"{field}[{i}]")
        for j, cell in enumerate(row):
            if cell is not None and (isinstance(cell, bool) or not isinstance(cell, int | float)):
                raise UnreadableInput("bad_number", "must be a number or null", f"{field}[{i}][{j}]")
    try:
        return np.array([[np.nan if cell is None else float(cell) for cell in row] for row in rows])
    except OverflowError:
        raise UnreadableInput("bad_number", "a number is too long", field) from None


def _partial(document: Document, record: Record) -> list[Reason]:
    n, values = document.data.get("n"), document.data.get("values")
    if isinstance(record, Unjudged) or not isinstance(n, int) or not isinstance(values, Mapping):
        return []
    if document.kind == "per_rank" and 0 < len(values) < n and document.flat_scalars():
        return [Reason("partial", f"{len(values)} of {n} ranks are listed")]
    return []


_READERS: dict[str, Callable[[Document], Record]] = {
    "path_matrix": _matrix,
    "pair_list": lists.read_pairs,
    "per_rank": lists.read_per_rank,
    "rounds": lists.read_rounds,
    "collective_sweep": lists.read_sweeps,
    "concurrent_runs": lists.read_totals,
    "port_counters": ports.read_port_counters,
    "link_state": ports.read_link_state,
}
