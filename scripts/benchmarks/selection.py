"""What the counters of the rail selector cost."""

from __future__ import annotations

import statistics
import time

from app.selection.selector import RailInfo, RailSelector
from scripts.benchmarks.common import Result

RAILS, SLICES, REQUESTS, RUNS = 8, 4, 10_000, 7
KIB = 1 << 10


class _Uncounted(RailSelector):
    """The same choices without counters."""

    def _count(self, *_: object) -> None:
        return


def selection() -> Result:
    """Microseconds that counting adds to a slice: median of 7 runs, the same loop with and without it in turns."""
    with_counters, without = [], []
    for _ in range(RUNS):
        with_counters.append(_run(RailSelector))
        without.append(_run(_Uncounted))
    added = [a - b for a, b in zip(with_counters, without, strict=True)]
    return {
        "rails": RAILS,
        "slices_a_request": SLICES,
        "with_us_a_slice": round(statistics.median(with_counters), 3),
        "without_us_a_slice": round(statistics.median(without), 3),
        "added_us_a_slice": round(statistics.median(added), 3),
        "target_us": 2.0,
    }


def _run(kind: type[RailSelector]) -> float:
    selector = kind([RailInfo(i, f"endpoint-{i}") for i in range(RAILS)])
    started = time.process_time()
    for _ in range(REQUESTS):
        for one in selector.select(SLICES * KIB, KIB).slices:
            selector.release(one, 0.001)
    return 1e6 * (time.process_time() - started) / (REQUESTS * SLICES)
