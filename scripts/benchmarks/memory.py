"""Resident memory of the running processes, after one job and over a thousand."""

from __future__ import annotations

import time

import numpy as np

from scripts.benchmarks.common import ENDED, Result, document, family, job_cost

JOBS = 1000
# A worker child is replaced after 500 tasks (`faultsense worker`); its first jobs import and cache.
WARM_UP = 50


def memory() -> Result:
    """Resident memory of the running API process and a worker child after a job, MB."""
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    request = {"k": 8, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 8}
    with EmulatedReplica(gpus=64, hosts=8, fixed_ms=1, compute_ms=0.1) as replica, Stack(workers=1) as stack:
        with stack.client() as client:
            registered = client.post("/replicas", json=document(replica)).json()
            job_cost(client, registered, request)
            client.get("/openapi.json")
        processes = {name: list(family(pid).values()) for name, pid in stack.pids().items()}
    return {
        "api_mb": round(max(processes["api"]), 1),
        "worker_child_mb": round(min(processes["worker"][1:]), 1),
        "all_mb": {name: [round(mb, 1) for mb in sizes] for name, sizes in processes.items()},
        "targets": {"api_mb": 150, "worker_child_mb": 200},
    }


def memory_slope() -> Result:
    """Resident memory of a worker child over 1,000 small jobs: MB a thousand jobs, by least squares."""
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    request = {"k": 2, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 4}
    samples: dict[int, list[tuple[int, float]]] = {}
    fast = {"fixed_ms": 0.5, "compute_ms": 0.1, "path_ms": {"same_host": 0.1, "cross_host": 0.1}}
    with (
        EmulatedReplica(gpus=4, hosts=2, **fast) as replica,
        Stack(workers=1) as stack,
        stack.client() as client,
    ):
        registered = client.post("/replicas", json=document(replica)).json()
        for number in range(JOBS):
            url = client.post(registered["links"]["localize"], json=request).headers["Location"]
            while client.get(url).json()["state"] not in ENDED:
                time.sleep(0.02)
            if number % 10 == 9:
                child, megabytes = list(family(stack.pids()["worker"]).items())[-1]
                samples.setdefault(child, []).append((number, megabytes))
    children = [_slope(points) for points in samples.values() if len(points) > 2 * WARM_UP / 10]
    return {"jobs": JOBS, "children": children, "target": "flat"}


def _slope(points: list[tuple[int, float]]) -> dict[str, float]:
    warm = [(n, mb) for n, mb in points if n >= points[0][0] + WARM_UP]
    numbers, sizes = np.array(warm).T
    half = len(warm) // 2
    return {
        "jobs": int(points[-1][0] - points[0][0]),
        "first_mb": round(points[0][1], 2),
        "last_mb": round(points[-1][1], 2),
        "mb_per_1000_jobs": round(float(np.polyfit(numbers, sizes, 1)[0]) * 1000, 3),
        "mb_per_1000_jobs_second_half": round(float(np.polyfit(numbers[half:], sizes[half:], 1)[0]) * 1000, 3),
    }
