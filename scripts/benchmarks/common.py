"""What the benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

Result = dict[str, Any]
ENDED = {"succeeded", "failed", "cancelled", "expired"}


def document(replica: Any, name: str = "bench", probes_per_second: float = 10_000) -> dict[str, Any]:
    """The document that registers an emulated replica."""
    return {
        "name": name,
        "gpus": replica.config.gpus,
        "probe_endpoints": replica.endpoints,
        "manifest": replica.manifest,
        "layout": {"all2all": "sparse"},
        "limits": {"probes_per_second": probes_per_second},
    }


def job_cost(client: Any, registered: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Run a job to its end; its wall time against its probes'."""
    url = client.post(registered["links"]["localize"], json=request).headers["Location"]
    while (job := client.get(url).json())["state"] not in ENDED:
        time.sleep(0.2)
    wall = datetime.fromisoformat(job["finished_at"]) - datetime.fromisoformat(job["started_at"])
    cost = job["verdict"]["cost"]
    return {
        "measurements": cost["measurements"],
        "wall_s": round(wall.total_seconds(), 3),
        "probes_s": cost["seconds"],
        "probe_ms": round(1000 * cost["seconds"] / cost["measurements"], 2),
        "ratio": round(wall.total_seconds() / cost["seconds"], 4),
    }


def family(pid: int) -> dict[int, float]:
    """Resident MB of the processes below a guard process, by process id."""
    found = {}
    pending = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    while pending:
        child = pending.pop(0)
        status = Path(f"/proc/{child}/status").read_text()
        found[child] = int(status.split("VmRSS:")[1].split()[0]) / 1024
        pending += [int(p) for p in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    return found


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile and maximum."""
    ordered = sorted(1000 * value for value in seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {
        "median": round(statistics.median(ordered), 2),
        "p95": at(0.95),
        "p99": at(0.99),
        "max": round(ordered[-1], 2),
    }
