"""What the engine counts: for /metrics, for /emulator/stats, and to check the emulator against its model."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import quantiles

from app.emulator.requests import ActiveSequence, Request

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TBT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_KEPT_STEPS = 4096


class Histogram:
    """A Prometheus histogram of seconds.

    Parameters
    ----------
    bounds : tuple of float
        Upper bounds of the buckets, ascending, without infinity.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a value, ``times`` over."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum += seconds * times


class RankCounters:
    """Totals of one rank."""

    def __init__(self) -> None:
        self.finished = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.ttft = Histogram(TTFT_BUCKETS)
        self.tbt = Histogram(TBT_BUCKETS)


class EngineObserver:
    """Counters of an engine.

    Parameters
    ----------
    gpus : int
        Number of ranks.
    """

    def __init__(self, gpus: int) -> None:
        self.ranks = tuple(RankCounters() for _ in range(gpus))
        self.steps = 0
        self._late_s: deque[float] = deque(maxlen=_KEPT_STEPS)

    def stepped(self, late_s: float) -> None:
        """Count a step and by how much its end missed its time, s."""
        self.steps += 1
        self._late_s.append(late_s)

    def produced(self, request: Request, sequences: Sequence[ActiveSequence], now: float) -> None:
        """Count the tokens of one request in one step."""
        counters = self.ranks[request.rank]
        counters.generation_tokens += len(sequences)
        counters.finished += sum(sequence.finished for sequence in sequences)
        first = [sequence for sequence in sequences if sequence.produced == 1]
        if first:
            counters.prompt_tokens += sum(len(sequence.prompt) for sequence in first)
            counters.ttft.observe(now - request.arrived, len(first))
        if request.last_token is not None and len(first) < len(sequences):
            counters.tbt.observe(now - request.last_token, len(sequences) - len(first))
        request.last_token = now

    def step_error_ms(self) -> dict[str, float]:
        """Return how late the latest steps ended: median and 95 % quantile, ms (zeros before two steps)."""
        if len(self._late_s) < 2:
            return {"median": 0.0, "p95": 0.0}
        cuts = quantiles(self._late_s, n=20, method="inclusive")
        return {"median": round(cuts[9] * 1e3, 3), "p95": round(cuts[18] * 1e3, 3)}
