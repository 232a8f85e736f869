"""Inputs that once took minutes for their few kilobytes: the time grows as the input does, not as its square."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from app.analyses import UnreadableInput, analyze
from app.analyses.analyze import judge
from app.analyses.fit import Fit
from app.analyses.hop_classes import HopClasses
from app.analyses.matrix_suspects import Findings, find_paths
from app.analyses.records import PairList, PathMatrix, PerRank, Record, Rounds, Scenarios, Totals

LONG = 60_000
RANGE = range(30_000)
#: CPU seconds; each of these once took twice as many, most of them minutes, and takes less than two now.
LIMIT = 4.0


@contextmanager
def in_time() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < LIMIT


def _json(**fields: object) -> str:
    return json.dumps({"unit": "s", "higher_is_worse": True} | fields)


TEXTS = {
    "blanks within a number": "rank,step_ms\n" + "\n".join(f"{i},1{' ' * LONG}x" for i in range(9)),
    "blanks after the number of a row": "\n".join("1" + " " * LONG for _ in range(9)),
    "blanks after a CA": "Switch: a\n" + "==( 4X 25 Gbps\nCA: " + " " * 5_000 + "x",
    "ranks without a time": "\n".join("[rank 1]" * (LONG // 8) for _ in range(60)),
    "rounds without a brace": "\n".join("round 1 " * (LONG // 8) for _ in range(60)),
    "opened braces": "round 1 " + "{" * LONG,
    "digits without a unit": "EP: 1/2 | dispatch:" + "1" * LONG,
    "blanks before a dispatch": "EP: 1/2 |" + " " * LONG + "x",
    "one row each": "\n".join(f"GB/s {i}\n0 1\n0 5 6" for i in range(20_000)),
    "as many rows as names": "rank,step_ms\n" + "\n".join(f"{i},10" for i in range(40_000)),
    "as many classes as ranks": _json(
        kind="per_rank", values={f"n{i}:nic{i}": 1 + i % 2 for i in range(30_000)}, placement={}
    ),
    "as many axes as ranks": _json(
        kind="per_rank",
        values={f"n{i}": 1 for i in RANGE},
        position={f"n{i}": {f"a{i}": 0} for i in RANGE},
    ),
    "as many counters as ports": _json(
        kind="port_counters", unit="counts", values={f"p{i}": {f"error_{i}": 0} for i in RANGE}
    ),
    "as many ports as counters": _json(
        kind="port_counters", unit="counts", values={f"error_{i}": {f"p{i}": 0} for i in RANGE}
    ),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_is_read_in_time(text: str) -> None:
    with in_time(), suppress(UnreadableInput):
        analyze(text)


def _per_rank(n: int, slow: int, hosts: int) -> PerRank:
    return PerRank({i: 1 + (i < slow) for i in range(n)}, "high", hosts={i: f"host-{i % hosts}" for i in range(n)})


def _pairs(n: int, slow: int) -> PairList:
    """A ring of fast pairs; slow ones across it, so that every end is cleared twice."""
    ring = [(i, (i + 1) % n, 50.0) for i in range(n)]
    return PairList([*ring, *((i, i + 7, 20.0) for i in range(slow))], "low")


def _ends(n: int) -> PairList:
    """Ends that are slow to both of their partners, which are cleared elsewhere."""
    slow = [(f"s{i}", f"f{i + k}", 20.0) for i in range(n) for k in (0, 1)]
    return PairList([*slow, *((f"f{i}", f"f{i + 1}", 50.0) for i in range(n))], "low")


RECORDS: dict[str, Record] = {
    "hosts of two": _per_rank(40_000, 13_000, 20_000),
    "half of the nodes of both rounds": Rounds([{i: 1.0 + i % 2 for i in range(60_000)}] * 2),
    "as many controls as conditions": Scenarios(
        [(f"{a}-{k}", PerRank({a: 1.0, a + 1: 1 + a}, "high")) for a in (0, 2) for k in range(10_000)],
        own_work=True,
    ),
    "as many metrics as patterns": Totals([{f"write_{i}": 1.0} for i in RANGE]),
    "many slow pairs": _pairs(16_000, 6_000),
    "many slow ends": _ends(6_000),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
def test_a_record_is_judged_in_time(record: Record) -> None:
    with in_time():
        answer = judge(record)
    assert answer.reasons or answer.suspects


def test_many_slow_paths_between_hosts_are_folded_in_time() -> None:
    n = 768
    host = np.arange(n) // (n // 4)
    slow = (host[:, None] != host[None, :]) & (host[:, None] // 2 == host[None, :] // 2)
    residual = np.where(slow, 1.0, 0.0)
    blocks = [np.flatnonzero(host == k) for k in range(4)]
    found = Findings()
    matrix = PathMatrix(list(range(n)), residual, "high")
    classes = HopClasses(np.zeros((n, n), dtype=np.intp), blocks, given=True)
    with in_time():
        find_paths(matrix, classes, Fit(np.zeros(n), np.zeros(n), residual, 0.01), found)
    assert [len(suspect.members) for suspect in found.suspects] == [n // 2, n // 2]
