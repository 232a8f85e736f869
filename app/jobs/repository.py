"""SQL of jobs. Times are the database's own: the only clock that all processes share."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.jobs.models import Job, JobEvent, JobVerdict
from app.kit import paging
from app.localization.events import ANSWERS, Event

_LIVE = Job.state.in_(("queued", "running"))

# One statement a measurement: renew the lease, keep the progress, append the event, learn of a cancellation.
# No row comes back when another attempt has the job.
_APPEND = text(
    """
    WITH fenced AS (
        UPDATE jobs SET lease_until = now() + make_interval(secs => :lease_s),
                        done = :done, planned = :planned, phase = :phase
        WHERE id = :job_id AND attempt = :attempt AND state = 'running'
        RETURNING cancel_requested
    ), appended AS (
        INSERT INTO events (job_id, seq, type, attempt, data)
        SELECT :job_id, :seq, :type, :attempt, CAST(:data AS jsonb) FROM fenced
    )
    SELECT cancel_requested FROM fenced
    """
)


def get(db: Session, job_id: uuid.UUID) -> Job | None:
    """One job."""
    return db.get(Job, job_id)


def live_of(db: Session, replica_id: uuid.UUID) -> Job | None:
    """The queued or running job of a replica."""
    return db.scalar(select(Job).where(Job.replica_id == replica_id, _LIVE))


def create(db: Session, values: dict[str, Any], deadline_s: float) -> Job | None:
    """Insert a job, unless the replica has a live one."""
    statement = (
        insert(Job)
        .values(**values, deadline_at=func.now() + dt.timedelta(seconds=deadline_s), hinted_at=func.now())
        .on_conflict_do_nothing(index_elements=[Job.replica_id], index_where=_LIVE)
        .returning(Job)
    )
    return db.scalar(statement)


def page(
    db: Session, *, limit: int, cursor: str | None, replica_id: uuid.UUID | None, state: str | None
) -> Sequence[Job]:
    """Jobs, the newest first; one more than ``limit`` when there is another page."""
    query = select(Job)
    if replica_id is not None:
        query = query.where(Job.replica_id == replica_id)
    if state is not None:
        query = query.where(Job.state == state)
    if cursor:
        query = query.where(paging.before(cursor, Job.created_at, Job.id))
    return db.scalars(query.order_by(Job.created_at.desc(), Job.id.desc()).limit(limit + 1)).all()


def verdicts(db: Session, job_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, dict[str, Any]]:
    """Verdict documents by job."""
    rows = db.execute(select(JobVerdict.job_id, JobVerdict.document).where(JobVerdict.job_id.in_(job_ids)))
    return {row.job_id: row.document for row in rows}


def events(db: Session, job_id: uuid.UUID) -> list[Event]:
    """The whole log of a job, in order."""
    rows = db.execute(select(JobEvent.type, JobEvent.data).where(JobEvent.job_id == job_id).order_by(JobEvent.seq))
    return [Event(row.type, row.data) for row in rows]


def answers(db: Session, job_id: uuid.UUID, *, after: int, limit: int) -> Sequence[JobEvent]:
    """Measurements of a job after a sequence number; one more than ``limit`` when there are more."""
    query = select(JobEvent).where(
        JobEvent.job_id == job_id, JobEvent.seq > after, JobEvent.type.in_(sorted(ANSWERS))
    )
    return db.scalars(query.order_by(JobEvent.seq).limit(limit + 1)).all()


def healthy_baseline(db: Session, job: Job) -> float | None:
    """Baseline of the replica's last healthy job under the same settings and topology."""
    same = ("k", "signal", "prompt_tokens", "decode_tokens", "aggregate", "baseline", "strategy")
    query = (
        select(JobVerdict.baseline_ms)
        .join(Job, Job.id == JobVerdict.job_id)
        .where(
            Job.replica_id == job.replica_id,
            Job.state == "succeeded",
            JobVerdict.outcome == "healthy",
            Job.topology_version.is_not_distinct_from(job.topology_version),
            and_(*(Job.settings[name].astext == _as_text(job.settings[name]) for name in same)),
        )
        .order_by(JobVerdict.created_at.desc())
        .limit(1)
    )
    return db.scalar(query)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def claim(db: Session, job_id: uuid.UUID, lease_s: float) -> Job | None:
    """Take a job that nobody holds; the attempt number goes up and fences off whoever had it before."""
    statement = (
        update(Job)
        .where(Job.id == job_id, _LIVE, or_(Job.lease_until.is_(None), Job.lease_until < func.now()))
        .values(
            state="running",
            attempt=Job.attempt + 1,
            lease_until=func.now() + dt.timedelta(seconds=lease_s),
            started_at=func.coalesce(Job.started_at, func.now()),
        )
        .returning(Job)
    )
    return db.scalar(statement, execution_options={"populate_existing": True})


def append(
    db: Connection,
    job: Job,
    seq: int,
    event: Event,
    *,
    progress: tuple[int, int],
    phase: int | None,
    lease_s: float,
) -> bool | None:
    """Append an event under the lease, in one statement: an autocommit connection saves two round trips.

    Returns
    -------
    bool or None
        Whether a cancellation is wanted; None when the lease is lost and nothing was written.
    """
    values = {
        "job_id": job.id,
        "attempt": job.attempt,
        "seq": seq,
        "type": event.type,
        "data": json.dumps(event.data, allow_nan=False),
        "done": progress[0],
        "planned": progress[1],
        "phase": phase,
        "lease_s": lease_s,
    }
    return db.execute(_APPEND, values).scalar()


def renew(db: Session, job_id: uuid.UUID, attempt: int, lease_s: float) -> bool:
    """Renew a lease; False when it is lost."""
    return _fenced(db, job_id, attempt, {"lease_until": func.now() + dt.timedelta(seconds=lease_s)})


def release(db: Session, job_id: uuid.UUID, attempt: int) -> bool:
    """Give a job back, to be taken up by anybody at once."""
    return _fenced(db, job_id, attempt, {"lease_until": None, "hinted_at": func.now()})


def finish(db: Session, job_id: uuid.UUID, attempt: int, state: str, error: dict[str, Any] | None) -> bool:
    """End a running job; False when the lease is lost."""
    return _fenced(
        db,
        job_id,
        attempt,
        {"state": state, "error": error, "finished_at": func.now(), "lease_until": None, "phase": None},
    )


def cancel_queued(db: Session, job_id: uuid.UUID) -> bool:
    """Cancel a job that no worker has taken; False when one has."""
    statement = (
        update(Job)
        .where(Job.id == job_id, Job.state == "queued")
        .values(state="cancelled", finished_at=func.now(), cancel_requested=True)
    )
    return _changed(db, statement)


def request_cancel(db: Session, job_id: uuid.UUID) -> bool:
    """Ask the worker of a running job to stop."""
    return _changed(db, update(Job).where(Job.id == job_id, Job.state == "running").values(cancel_requested=True))


def expire_queued(db: Session) -> list[uuid.UUID]:
    """End queued jobs whose deadline passed before any worker took them."""
    error = {"code": "expired", "detail": "no worker took the job before its deadline; are workers running?"}
    statement = (
        update(Job)
        .where(Job.state == "queued", Job.deadline_at < func.now())
        .values(state="expired", finished_at=func.now(), error=error)
        .returning(Job.id)
    )
    return list(db.scalars(statement))


def give_up_lost(db: Session, grace_s: float) -> list[uuid.UUID]:
    """Fail running jobs that no worker brought to an end though their deadline is long past."""
    error = {"code": "lost", "detail": "workers took the job up but never ended it; their logs tell why"}
    statement = (
        update(Job)
        .where(
            Job.state == "running",
            Job.deadline_at < func.now() - dt.timedelta(seconds=grace_s),
            or_(Job.lease_until.is_(None), Job.lease_until < func.now()),
        )
        .values(state="failed", finished_at=func.now(), lease_until=None, error=error)
        .returning(Job.id)
    )
    return list(db.scalars(statement))


def due_again(db: Session, requeue_after_s: float, limit: int = 100) -> list[uuid.UUID]:
    """Jobs that a worker must be told of again: a lease ran out, or a hint was not followed.

    Marks them as hinted, so that one sweep after another does not send the same.
    """
    stale_hint = or_(Job.hinted_at.is_(None), Job.hinted_at < func.now() - dt.timedelta(seconds=requeue_after_s))
    due = (
        select(Job.id)
        .where(_LIVE, or_(Job.lease_until < func.now(), and_(Job.lease_until.is_(None), stale_hint)))
        .order_by(Job.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    statement = update(Job).where(Job.id.in_(due)).values(hinted_at=func.now()).returning(Job.id)
    return list(db.scalars(statement))


def _fenced(db: Session, job_id: uuid.UUID, attempt: int, values: dict[str, Any]) -> bool:
    return _changed(
        db,
        update(Job).where(Job.id == job_id, Job.attempt == attempt, Job.state == "running").values(**values),
    )


def _changed(db: Session, statement: Any) -> bool:
    return db.execute(statement.returning(Job.id)).first() is not None
