"""Slow parts that GPUs share, in an emulated replica, by jobs over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.cli.client import call, watch_job
from scripts.benchmarks.common import Result
from scripts.benchmarks.shared import ABOVE, KINDS, SIGMA

SEED = 5300
JOB_SECONDS = 600.0
PATH_MS = {"same_host": 1.0, "cross_host": 1.0}


def shared_http() -> Result:
    """``SHARED_JOBS`` jobs (10) of each kind on 64 emulated GPUs on 8 hosts, after a healthy one.

    The healthy job says what it could have seen with the noise of this machine; faults are as far above it as in
    the simulated benchmark. Steps take as long as the emulator's defaults say: where they are shorter, the work of
    64 emulated ranks on a few cores is taken for the cost of sends, which no injected fault makes slower. Sends
    take equally long within hosts and between them, so that what a job could have seen holds for both.
    """
    from app.cli.demo import REQUEST, register
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica
    from app.localization.trials import RandomParts

    jobs = int(os.environ.get("SHARED_JOBS", "10"))
    emulated = EmulatedReplica(gpus=64, hosts=8, noise_sigma=SIGMA, seed=SEED, path_ms=PATH_MS)
    with (
        emulated as replica,
        Stack(workers=1, settings={"probe_timeout_s": "10"}) as stack,
        stack.client() as client,
    ):
        links = register(client, replica, "shared")
        request = {**REQUEST, "deadline_s": JOB_SECONDS}
        healthy = _job(client, links, request)
        least = healthy["verdict"]["detectable"]
        rows = [{"kind": "none", **_judged(healthy, (), replica)}]
        rng = np.random.default_rng(SEED)
        for kind in KINDS:
            drawn = RandomParts((kind,), 1, replica.config.placement, ABOVE * least["gpu"], ABOVE * least["path"])
            for _ in range(jobs):
                faults = drawn.draw(64, rng)
                replica.set_faults([str(fault) for fault in faults])
                rows.append({"kind": kind, **_judged(_job(client, links, request), faults, replica)})
                print(rows[-1], flush=True)
    return {"seed": SEED, "detectable": least, "rows": rows, "right": _right(rows)}


def _job(client: Any, links: dict[str, str], request: dict[str, Any]) -> dict[str, Any]:
    return watch_job(client, call(client, "POST", links["localize"], request)["id"])


def _judged(job: dict[str, Any], faults: Sequence[Any], replica: Any) -> dict[str, Any]:
    from app.localization.expectation import compare_document

    texts, verdict = [str(fault) for fault in faults], job["verdict"]
    if verdict is None:
        return {"faults": texts, "right": False, "outcome": job["state"]}
    return {
        "faults": texts,
        "right": compare_document(faults, verdict, placement=replica.config.placement).exact,
        "outcome": verdict["outcome"],
        "summary": verdict["summary"],
        "reasons": [reason["code"] for reason in verdict["reasons"]],
        "measurements": verdict["cost"]["measurements"],
    }


def _right(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    kinds = dict.fromkeys(row["kind"] for row in rows)
    same = {kind: [row["right"] for row in rows if row["kind"] == kind] for kind in kinds}
    return {kind: f"{sum(right)} of {len(right)}" for kind, right in same.items()}
