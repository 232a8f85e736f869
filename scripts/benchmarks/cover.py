"""Greedy covers."""

from __future__ import annotations

import statistics
import time

from scripts.benchmarks.common import Result


def cover() -> Result:
    """Greedy covers from nothing: probes, ratio to the Schonheim bound, seconds (median of 3)."""
    from app.localization import cover as covers

    rows = []
    for n, k in ((64, 8), (300, 4), (300, 8), (325, 8), (1024, 8)):
        seconds = []
        for _ in range(3):
            covers._cached.cache_clear()
            started = time.perf_counter()
            probes = len(covers.greedy_cover(n, k))
            seconds.append(time.perf_counter() - started)
        bound = covers.schonheim_bound(n, k)
        rows.append(
            {
                "n": n,
                "k": k,
                "probes": probes,
                "lower_bound": bound,
                "ratio": round(probes / bound, 4),
                "seconds": round(statistics.median(seconds), 4),
            }
        )
    return {"rows": rows, "targets": {"n=325,k=8": 0.5, "n=1024,k=8": 5.0}}
