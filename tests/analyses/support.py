"""Matrices with known faults, and what an answer says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.analyses import Analysis
from app.analyses.records import Judgement, PathMatrix

Logs = NDArray[np.float64]


def healthy(n: int, sigma: float, seed: int, blocks: int = 1, step: float = 1.0) -> tuple[Logs, list[str]]:
    """Log latencies of n ranks in equal blocks, ``step`` slower across; and the block of each."""
    rng = np.random.default_rng(seed)
    block = np.arange(n) // (n // blocks)
    logs = np.where(block[:, None] == block[None, :], 0.0, np.log(step)) + rng.normal(0, sigma, (n, n))
    return logs, [f"host-{b}" for b in block]


def slow_gpu(logs: Logs, rank: int, times: float = 2.0) -> Logs:
    """All paths of a rank slower; a pair that is slow twice is slow once."""
    logs = logs.copy()
    logs[rank, :] += np.log(times)
    logs[:, rank] += np.log(times)
    return logs


def slow_path(logs: Logs, a: int, b: int, times: float = 2.0) -> Logs:
    """Both directions of a path slower."""
    logs = logs.copy()
    logs[a, b] += np.log(times)
    logs[b, a] += np.log(times)
    return logs


def latencies(logs: Logs, placement: Sequence[str] | None = None) -> PathMatrix:
    """A latency matrix."""
    return PathMatrix(list(range(len(logs))), np.exp(logs), "high", placement)


def named(answer: Analysis | Judgement) -> list[tuple[str, tuple[int | str, ...]]]:
    """Kind and members of each suspect."""
    return [(s.kind, tuple(s.members)) for s in answer.suspects]


def codes(answer: Analysis | Judgement) -> set[str]:
    """Codes of the reasons."""
    return {reason.code for reason in answer.reasons}
