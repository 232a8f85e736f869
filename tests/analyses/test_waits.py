"""Matrices of waits: late is who others wait for; who waits long, and jitter, accuse nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from app.analyses import Analysis, analyze


def waits(
    n: int, seed: int, late: Mapping[int, float] | None = None, *, jitter: float = 20.0, host: float = 0.0
) -> NDArray[np.float64]:
    """Rank i waits for rank j: a floor of 40 and what j comes later; the second half of the ranks by ``host``."""
    rng = np.random.default_rng(seed)
    arrives = rng.normal(0, jitter / 2, n) + host * (np.arange(n) >= n // 2)
    for rank, delay in (late or {}).items():
        arrives[rank] += delay
    waited = 40 + np.maximum(0, arrives[None, :] - arrives[:, None])
    return np.asarray(waited * np.exp(rng.normal(0, 0.05, (n, n))), dtype=np.float64)


def judged(values: NDArray[np.float64]) -> Analysis:
    return analyze("\n".join(f"rank={i} [{' '.join(f'{x:.0f}' for x in row)}]" for i, row in enumerate(values)))


def names(answer: Analysis) -> list[str]:
    return [suspect.name for suspect in answer.suspects]


@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize("host", [0.0, 600.0])
def test_who_is_late_is_named_and_nobody_who_waits(n: int, host: float) -> None:
    for seed in range(20):
        assert names(judged(waits(n, seed, {2: 2000.0}, host=host))) == ["rank 2"], seed


def test_two_that_are_late_are_both_named() -> None:
    for seed in range(20):
        assert names(judged(waits(16, seed, {2: 2000.0, 5: 1500.0}))) == ["rank 2", "rank 5"], seed


@pytest.mark.parametrize("jitter", [5.0, 20.0, 200.0, 2000.0])
@pytest.mark.parametrize("n", [8, 16, 32])
def test_jitter_accuses_nobody(n: int, jitter: float) -> None:
    for seed in range(40):
        assert names(judged(waits(n, seed, jitter=jitter))) == [], seed


def test_who_waits_for_all_others_is_told_and_not_accused() -> None:
    answer = judged(waits(16, 1, {4: -2000.0}))
    assert (answer.outcome, [reason.code for reason in answer.reasons]) == ("inconclusive", ["waits_long"])


def placed(values: NDArray[np.float64], hosts: int) -> Analysis:
    n = len(values)
    data = {"kind": "path_matrix", "unit": "us waited", "n": n, "values": values.tolist()}
    return analyze(json.dumps(data | {"placement": {str(i): f"h{i * hosts // n}" for i in range(n)}}))


def test_ranks_are_held_against_their_own_host() -> None:
    answer = placed(waits(16, 3, {2: 300.0}, host=600.0), 2)
    assert names(answer) == ["rank 2"]
    assert "host_later" in {reason.code for reason in answer.reasons}


def test_a_host_that_is_late_as_a_whole_is_a_group() -> None:
    late = dict.fromkeys(range(4, 8), 2000.0)
    answer = placed(waits(24, 3, late), 6)
    assert [(suspect.kind, suspect.members) for suspect in answer.suspects] == [("group", [4, 5, 6, 7])]


def test_one_path_that_takes_longer_than_arrivals_explain() -> None:
    values = waits(16, 5, jitter=4.0)
    values[3, 9] *= 4
    values[9, 3] *= 4
    assert names(judged(values)) == ["path 3-9"]


def test_rows_of_a_paste_may_be_missing_at_its_end() -> None:
    text = "\n".join(
        f"rank={i} [{' '.join(f'{x:.0f}' for x in row)}]" for i, row in enumerate(waits(16, 2, {2: 2000.0})[:13])
    )
    assert names(analyze(text)) == ["rank 2"]
