"""Jobs and probes as the API shows them; webhooks carry the same job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.jobs import repository
from app.jobs.models import Job, JobEvent
from app.jobs.schemas import JobError, JobOut, ProbeOut, Progress, VerdictOut

LIVE = {"queued", "running"}


def with_verdicts(db: Session, jobs: Sequence[Job]) -> list[JobOut]:
    """Jobs with the verdicts they have."""
    verdicts = repository.verdicts(db, [row.id for row in jobs])
    return [job(row, verdicts.get(row.id)) for row in jobs]


def job(row: Job, verdict: dict[str, Any] | None) -> JobOut:
    """One job."""
    links = {"self": f"/jobs/{row.id}", "replica": f"/replicas/{row.replica_id}"}
    links |= {name: f"/jobs/{row.id}/{name}" for name in ("probes", "log", "events", "selection")}
    if row.state in LIVE:
        links["cancel"] = f"/jobs/{row.id}/cancel"
    if "webhook_id" in row.request:
        links["webhook"] = f"/webhooks/{row.request['webhook_id']}"
    return JobOut(
        id=row.id,
        replica_id=row.replica_id,
        state=row.state,
        phase=row.phase,
        progress=Progress(done=row.done, planned=row.planned),
        attempt=row.attempt,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        deadline_at=row.deadline_at,
        settings=row.settings,
        topology_version=row.topology_version,
        verdict=None if verdict is None else VerdictOut.model_validate(verdict),
        error=None if row.error is None else JobError.model_validate(row.error),
        links=links,
    )


def probe(event: JobEvent) -> ProbeOut:
    """One measurement."""
    known = {name: value for name, value in event.data.items() if name in ProbeOut.model_fields}
    return ProbeOut(seq=event.seq, at=event.created_at, type=event.type, **known)
