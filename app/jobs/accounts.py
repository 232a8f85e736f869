"""What is counted of jobs that end, in the transaction that ends them: counters outlive the jobs' events."""

from __future__ import annotations

import uuid

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.kit import counters

PROBE_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]

_BY_PHASE = text(
    """
    SELECT type, data->>'phase' AS phase,
           width_bucket((data->>'wall_ms')::float / 1000, CAST(:bounds AS float[])) AS bucket,
           count(*) AS number, sum((data->>'wall_ms')::float) / 1000 AS seconds
    FROM events WHERE job_id = :job_id AND type IN ('measured', 'timed_out', 'failed')
          AND data->>'wall_ms' IS NOT NULL
    GROUP BY 1, 2, 3
    """
)
_RAN_FOR = text("SELECT extract(epoch FROM finished_at - started_at) FROM jobs WHERE id = :job_id")


def count_end(db: Session, state: str, outcome: str | None, number: int = 1) -> None:
    """Count jobs that ended in a state, with an outcome when there is a verdict."""
    counters.add(db, [("jobs_finished_total", {"state": state, "outcome": outcome or "none"}, number)])


def count_recovery(db: Session) -> None:
    """Count a job that was taken up after its worker went silent."""
    counters.add(db, [("lease_recoveries_total", {}, 1)])


def count_probes(db: Session, job_id: uuid.UUID, probes_per_second: float) -> None:
    """Count a job's probes by phase and result, their latencies, and how many its replica's limit allowed."""
    rows = db.execute(_BY_PHASE, {"job_id": job_id, "bounds": PROBE_SECONDS}).all()
    counts: list[counters.Count] = []
    for row in rows:
        # The upper bound of a bucket belongs to the next one here, to this one there; latencies are never equal.
        le = str(PROBE_SECONDS[row.bucket]) if row.bucket < len(PROBE_SECONDS) else "+Inf"
        counts += [
            ("probes_total", {"phase": row.phase, "result": row.type}, row.number),
            ("probe_seconds_bucket", {"phase": row.phase, "le": le}, row.number),
            ("probe_seconds_sum", {"phase": row.phase}, row.seconds),
        ]
    ran_s = db.scalar(_RAN_FOR, {"job_id": job_id})
    counts.append(("probes_allowed_total", {}, float(ran_s or 0.0) * probes_per_second))
    counters.add(db, counts)
