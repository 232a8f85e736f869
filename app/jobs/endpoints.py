"""HTTP of jobs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from app.jobs import repository, service
from app.jobs.models import Job, JobEvent
from app.jobs.schemas import (
    JobError,
    JobOut,
    LocalizeRequest,
    PlanOut,
    ProbeOut,
    Progress,
    State,
    VerdictOut,
)
from app.kit import broker, paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.paging import Page
from app.kit.problems import invalid, responses
from app.localization.events import Event, dump_log
from app.replicas import service as replicas

router = APIRouter(tags=["jobs"])
READ = [Depends(require("read"))]
OPERATE = [Depends(require("operate"))]
LIVE = {"queued", "running"}


@router.post(
    "/replicas/{replica_id}/localize",
    status_code=202,
    operation_id="localize",
    dependencies=OPERATE,
    responses={200: {"model": PlanOut, "description": "The plan (dry_run)"}, **responses(400, 404, 409, 413)},
    response_model=JobOut,
)
def localize(replica_id: uuid.UUID, db: Db, response: Response, request: LocalizeRequest | None = None) -> Any:
    """Start a job that finds the slow GPU or path. 409 with its Location while another one runs."""
    wanted = request or LocalizeRequest()
    replica = replicas.get(db, replica_id, lock=not wanted.dry_run)
    settings = service.settle(db, replica, wanted)
    if wanted.dry_run:
        plan = service.plan(replica, settings)
        return Response(plan.model_dump_json(), media_type="application/json")
    job = service.create(db, replica, wanted, settings)
    db.commit()
    broker.hint(broker.LOCALIZE, str(job.id))
    response.headers["Location"] = f"/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
    return _shown(job, None)


@router.get("/jobs", operation_id="listJobs", dependencies=READ, responses=responses())
def list_jobs(
    db: Db,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
    replica_id: uuid.UUID | None = None,
    state: State | None = None,
) -> Page[JobOut]:
    """Jobs, the newest first."""
    found = repository.page(db, limit=limit, cursor=cursor, replica_id=replica_id, state=state)
    more = found[limit - 1] if len(found) > limit else None
    return Page[JobOut](
        items=_with_verdicts(db, found[:limit]),
        next_cursor=paging.encode(more.created_at, more.id) if more else None,
    )


@router.get("/jobs/{job_id}", operation_id="getJob", dependencies=READ, responses=responses(404))
def get(job_id: uuid.UUID, db: Db, response: Response) -> JobOut:
    """One job, with its verdict when it has one."""
    job = service.get(db, job_id)
    if job.state in LIVE:
        response.headers["Retry-After"] = "1"
    return _with_verdicts(db, [job])[0]


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    operation_id="cancelJob",
    dependencies=OPERATE,
    responses=responses(404, 409),
)
def cancel(job_id: uuid.UUID, db: Db) -> JobOut:
    """Cancel a job: at once while it is queued, within one probe while it runs."""
    job = service.get(db, job_id)
    service.cancel(db, job)
    db.commit()
    db.refresh(job)
    return _with_verdicts(db, [job])[0]


@router.get("/jobs/{job_id}/probes", operation_id="listProbes", dependencies=READ, responses=responses(404))
def probes(
    job_id: uuid.UUID,
    db: Db,
    limit: paging.Limit = 100,
    cursor: Annotated[str | None, Query(max_length=20, description="`next_cursor` of the page before.")] = None,
) -> Page[ProbeOut]:
    """Measurements of a job, in order."""
    service.get(db, job_id)
    found = repository.answers(db, job_id, after=_after(cursor), limit=limit)
    return Page[ProbeOut](
        items=[_probe(event) for event in found[:limit]],
        next_cursor=str(found[limit - 1].seq) if len(found) > limit else None,
    )


@router.get(
    "/jobs/{job_id}/log",
    operation_id="getJobLog",
    dependencies=READ,
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "description": "JSON lines"},
        **responses(404),
    },
)
def log(job_id: uuid.UUID, db: Db) -> StreamingResponse:
    """The event log, one JSON object a line: the input of `faultsense replay`."""
    job = service.get(db, job_id)
    events = repository.events(db, job_id)
    verdict = repository.verdicts(db, [job.id]).get(job.id)
    if verdict is not None:
        events.append(Event("verdict", {"verdict": verdict}))
    return StreamingResponse(_lines(events), media_type="application/x-ndjson")


def _lines(events: list[Event]) -> Iterator[str]:
    for line in dump_log(events):
        yield line + "\n"


def _after(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise invalid("query.cursor", "is not a cursor of this service")
    return int(cursor)


def _with_verdicts(db: Session, jobs: Sequence[Job]) -> list[JobOut]:
    verdicts = repository.verdicts(db, [job.id for job in jobs])
    return [_shown(job, verdicts.get(job.id)) for job in jobs]


def _shown(job: Job, verdict: dict[str, Any] | None) -> JobOut:
    links = {"self": f"/jobs/{job.id}", "replica": f"/replicas/{job.replica_id}"}
    links |= {name: f"/jobs/{job.id}/{name}" for name in ("probes", "log")}
    if job.state in LIVE:
        links["cancel"] = f"/jobs/{job.id}/cancel"
    return JobOut(
        id=job.id,
        replica_id=job.replica_id,
        state=job.state,
        phase=job.phase,
        progress=Progress(done=job.done, planned=job.planned),
        attempt=job.attempt,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        deadline_at=job.deadline_at,
        settings=job.settings,
        topology_version=job.topology_version,
        verdict=None if verdict is None else VerdictOut.model_validate(verdict),
        error=None if job.error is None else JobError.model_validate(job.error),
        links=links,
    )


def _probe(event: JobEvent) -> ProbeOut:
    known = {name: value for name, value in event.data.items() if name in ProbeOut.model_fields}
    return ProbeOut(seq=event.seq, at=event.created_at, type=event.type, **known)
