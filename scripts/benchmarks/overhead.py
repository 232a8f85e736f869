"""What a job costs beyond its probes."""

from __future__ import annotations

import statistics

from scripts.benchmarks.common import Result, document, job_cost


def overhead() -> Result:
    """A job's wall time over the sum of its probes' (parking counted with the probes), bucket off.

    The whole service, 200 measurements of about 20 ms, one at a time; median of 5 jobs.
    """
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    latency = {"fixed_ms": 2.2, "compute_ms": 0.0, "path_ms": {"same_host": 0.0, "cross_host": 0.0}}
    # A cover of 20 probes, ten times: 200 measurements. A prefill step and three decode steps are one probe.
    request = {"k": 4, "repeats": 10, "prompt_tokens": 1, "decode_tokens": 4, "signal": "ttft", "alpha": 100}
    with EmulatedReplica(gpus=16, noise_sigma=0.0, **latency) as replica, Stack(workers=1) as stack:
        client = stack.client()
        registered = client.post("/replicas", json=document(replica)).json()
        jobs = [job_cost(client, registered, request) for _ in range(5)]
    return {
        "wall_over_probes": round(statistics.median(job["ratio"] for job in jobs), 4),
        "target": 1.10,
        "jobs": jobs,
    }
