"""HTTP of jobs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import StreamingResponse

from app.jobs import documents, repository, selection, service
from app.jobs.documents import LIVE
from app.jobs.schemas import JobOut, LocalizeRequest, Outcome, PlanOut, ProbeOut, State
from app.jobs.selection import SelectionOut
from app.jobs.watch import watch
from app.kit import broker, headers, paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import TransactionalRoute, UrgentRoute
from app.localization.events import Event, dump_log
from app.replicas import service as replicas

router = APIRouter(tags=["jobs"], route_class=TransactionalRoute)
urgent = APIRouter(tags=["jobs"], route_class=UrgentRoute)
READ = [Depends(require("read"))]
# One event of a stream, as OpenAPI describes server-sent events.
SSE_SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in ("data", "event", "id")}}
JSON_LINES = "application/x-ndjson"
LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}, "description": "JSON lines"}
}
OPERATE = [Depends(require("operate"))]


@router.post(
    "/replicas/{replica_id}/localize",
    status_code=202,
    operation_id="localize",
    dependencies=[*OPERATE, Idempotent],
    responses={
        200: {"model": PlanOut, "description": "The plan (dry_run)"},
        202: {"headers": {**headers.LOCATION, **headers.RETRY_AFTER}},
        **responses(400, 404, 409, 413),
    },
    response_model=JobOut,
)
def localize(replica_id: uuid.UUID, db: Db, response: Response, request: LocalizeRequest | None = None) -> Any:
    """Start a job that finds the slow GPU or path.

    409 with its Location while another one runs, and while probing is stopped. With `dry_run` the answer is the
    plan: what Phase 1 would send, and the smallest faults that it could see.
    """
    wanted = request or LocalizeRequest()
    replica = replicas.get(db, replica_id, lock=not wanted.dry_run)
    settings = service.settle(db, replica, wanted)
    if wanted.dry_run:
        plan = service.plan(replica, settings)
        return Response(plan.model_dump_json(), media_type="application/json")
    job = service.create(db, replica, wanted, settings)
    broker.hint_after_commit(db, broker.LOCALIZE, str(job.id))
    response.headers["Location"] = f"/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
    return documents.job(job, None)


@router.get("/jobs", operation_id="listJobs", dependencies=READ, responses=responses())
def list_jobs(
    db: Db,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
    replica_id: uuid.UUID | None = None,
    state: State | None = None,
    outcome: Outcome | None = None,
    since: Annotated[paging.Moment | None, Query(description="Created then or later; with a time zone.")] = None,
    until: Annotated[paging.Moment | None, Query(description="Created before; with a time zone.")] = None,
) -> Page[JobOut]:
    """Jobs, the newest first."""
    wanted = repository.Filters(replica_id, state, outcome, since, until)
    found = repository.page(db, wanted, limit=limit, cursor=cursor)
    rows, following = paging.cut(found, limit, lambda job: paging.encode(job.created_at, job.id))
    return Page[JobOut](items=documents.with_verdicts(db, rows), next_cursor=following)


@router.get(
    "/jobs/{job_id}",
    operation_id="getJob",
    dependencies=READ,
    responses={200: {"headers": headers.RETRY_AFTER}, **responses(404)},
)
def get(job_id: uuid.UUID, db: Db, response: Response) -> JobOut:
    """One job, with its verdict when it has one. While it lives, `Retry-After` says when to ask again."""
    job = service.get(db, job_id)
    if job.state in LIVE:
        response.headers["Retry-After"] = "1"
    return documents.with_verdicts(db, [job])[0]


@urgent.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    operation_id="cancelJob",
    dependencies=[*OPERATE, Idempotent],
    responses=responses(404, 409),
)
def cancel(job_id: uuid.UUID, db: Db) -> JobOut:
    """Cancel a job: at once while it is queued, within one probe while it runs."""
    job = service.get(db, job_id)
    service.cancel(db, job)
    db.flush()
    db.refresh(job)
    return documents.with_verdicts(db, [job])[0]


@router.get("/jobs/{job_id}/probes", operation_id="listProbes", dependencies=READ, responses=responses(404, 410))
def probes(job_id: uuid.UUID, db: Db, limit: paging.Limit = 100, cursor: paging.Cursor = None) -> Page[ProbeOut]:
    """Measurements of a job, in order. 410 when the retention has deleted them."""
    service.with_events(db, job_id)
    after = -1 if cursor is None else paging.decode_number(cursor)
    found = repository.answers(db, job_id, after=after, limit=limit)
    rows, following = paging.cut(found, limit, lambda event: paging.encode_number(event.seq))
    return Page[ProbeOut](items=[documents.probe(event) for event in rows], next_cursor=following)


@router.get(
    "/jobs/{job_id}/events",
    operation_id="watchJob",
    dependencies=READ,
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": SSE_SCHEMA}}, "description": "The stream"},
        204: {"description": "The last event was seen already: nothing will follow"},
        **responses(404),
    },
)
async def events(
    job_id: uuid.UUID,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^(\d{1,9}|end)$", description="Continue after this event's id.")
    ] = None,
) -> Response:
    """Follow a job: its log's events as they are stored, its progress, and at the end the whole job.

    `id` is the event's number, so that a watcher that reconnects with `Last-Event-ID` misses nothing; browsers do
    so by themselves. `state` (no id) has state, phase and progress; `end` has the job and its verdict, then the
    stream ends. A comment line comes every few seconds while nothing happens.
    """
    if last_event_id == "end":
        return Response(status_code=204)
    after = -1 if last_event_id is None else int(last_event_id)
    return StreamingResponse(
        await watch(job_id, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get(
    "/jobs/{job_id}/log",
    operation_id="getJobLog",
    dependencies=READ,
    response_class=StreamingResponse,
    responses={**LINES, **responses(404, 410)},
)
def log(job_id: uuid.UUID, db: Db) -> StreamingResponse:
    """The event log, one JSON object a line: the input of `faultsense replay`. 410 when it was deleted."""
    job = service.with_events(db, job_id)
    events = repository.events(db, job_id)
    verdict = repository.verdicts(db, [job.id]).get(job.id)
    if verdict is not None:
        events.append(Event("verdict", {"verdict": verdict}))
    db.close()  # a slow reader must not keep a connection of the pool
    return StreamingResponse(_lines(events), media_type=JSON_LINES)


@router.get(
    "/jobs/{job_id}/selection", operation_id="getJobSelection", dependencies=READ, responses=responses(404)
)
def selected(job_id: uuid.UUID, db: Db) -> SelectionOut:
    """Which rails (probe endpoints) carried the job's probes.

    Slices and bytes by rail, requests over one rail or several, scheduled exploration, and how evenly they were
    spread, over all measured phases; a phase that failed has no numbers, and the answer says why.
    """
    return selection.selection(db, service.get(db, job_id))


@router.get(
    "/jobs/{job_id}/selection.jsonl",
    operation_id="getJobSelectionRecords",
    dependencies=READ,
    response_class=StreamingResponse,
    responses={**LINES, **responses(404)},
)
def selection_records(job_id: uuid.UUID, db: Db) -> Response:
    """The same as `rdma_selection_metrics` records, one a measured phase, each followed by `target_metrics`."""
    lines = "".join(f"{line}\n" for line in selection.records(db, service.get(db, job_id)))
    return Response(lines, media_type=JSON_LINES)


def _lines(events: list[Event]) -> Iterator[str]:
    for line in dump_log(events):
        yield line + "\n"
