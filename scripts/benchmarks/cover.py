"""Covers: the paper's greedy ones and the best known here."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from scripts.benchmarks.common import Result

SIZES = range(25, 326)  # GPUs, as in the paper's Figure 3


def cover() -> Result:
    """Greedy covers from nothing; best covers over the paper's range against the Schonheim bound; their times."""
    return {
        "rows": [_greedy(n, k) for n, k in ((64, 8), (300, 4), (300, 8), (325, 8), (1024, 8))],
        "best": [_range(k) for k in (4, 8)],
        "cold": [{"n": 300, "k": k, "seconds": _cold(300, k)} for k in (4, 8)],
        "largest": [_best(1024, k) for k in (3, 4, 8, 16)],
        "targets": {
            "n=325,k=8": 0.5,
            "n=1024,k=8": 5.0,
            "best k=4": "ratio <= 1.001 mean, <= 1.03 max",
            "best k=8": "ratio <= 1.06 mean, <= 1.22 max",
            "best n=300": "k=4 7500, k=8 <= 1641; 1 s warm, 10 s cold",
        },
    }


def _greedy(n: int, k: int) -> Result:
    """Probes, ratio to the Schonheim bound, seconds (median of 3)."""
    from app.localization import cover as covers
    from app.localization.cover import greedy

    seconds = []
    for _ in range(3):
        greedy._cached.cache_clear()
        seconds.append(_seconds(lambda: covers.greedy_cover(n, k)))
    probes, bound = len(covers.greedy_cover(n, k)), covers.schonheim_bound(n, k)
    return {
        "n": n,
        "k": k,
        "probes": probes,
        "lower_bound": bound,
        "ratio": round(probes / bound, 4),
        "seconds": round(statistics.median(seconds), 4),
    }


def _range(k: int) -> Result:
    """Every size once, the process being warm: no cover is asked for twice."""
    from app.localization.cover import best_cover

    best_cover(24, k)
    seconds = {n: _seconds(lambda n=n: best_cover(n, k)) for n in SIZES}
    found = {n: best_cover(n, k) for n in SIZES}
    ratios = {n: len(best.probes) / best.lower_bound for n, best in found.items()}
    worst, slowest = max(ratios, key=ratios.__getitem__), max(seconds, key=seconds.__getitem__)
    extra = [best.first_class + -best.n // best.k for best in found.values()]
    return {
        "k": k,
        "sizes": f"{SIZES[0]}..{SIZES[-1]}",
        "ratio_mean": round(statistics.mean(ratios.values()), 5),
        "ratio_max": round(ratios[worst], 5),
        "ratio_max_at": worst,
        "at_the_bound": sum(len(best.probes) == best.lower_bound for best in found.values()),
        "first_class_least": sum(more == 0 for more in extra),
        "first_class_most_extra": max(extra),
        "n=300": {"probes": len(found[300].probes), "seconds": round(seconds[300], 4)},
        "seconds_mean": round(statistics.mean(seconds.values()), 4),
        "seconds_max": round(seconds[slowest], 4),
        "seconds_max_at": slowest,
    }


def _best(n: int, k: int) -> Result:
    from app.localization.cover import best_cover

    seconds = _seconds(lambda: best_cover(n, k))
    best = best_cover(n, k)
    return {"n": n, "k": k, "probes": len(best.probes), "method": best.method, "seconds": round(seconds, 3)}


def _cold(n: int, k: int) -> float:
    """A fresh interpreter, its start and imports included."""
    program = f"from app.localization.cover import best_cover; best_cover({n}, {k})"
    return round(_seconds(lambda: subprocess.run([sys.executable, "-c", program], check=True)), 3)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
