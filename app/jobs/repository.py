"""SQL of jobs. Times are the database's own: the only clock that all processes share."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Integer,
    Uuid,
    and_,
    cast,
    column,
    delete,
    func,
    literal,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Session, aliased

from app.jobs.models import Job, JobEvent, JobVerdict
from app.kit import paging
from app.localization.events import ANSWERS, Event

_LIVE = Job.state.in_(("queued", "running"))

_STOP = """
    LEFT JOIN LATERAL (
        SELECT reason, stopped_by FROM probing_stops
        WHERE scope IN ('fleet', job.replica_id::text) ORDER BY scope = 'fleet' DESC LIMIT 1
    ) stop ON true
"""
# One statement a measurement: renew the lease, keep the progress, append the event, learn of a cancellation or
# of a stop switch.
# No row comes back when another attempt has the job.
_APPEND = text(
    """
    WITH fenced AS (
        UPDATE jobs SET lease_until = now() + make_interval(secs => :lease_s),
                        done = :done, planned = :planned, phase = :phase
        WHERE id = :job_id AND attempt = :attempt AND state = 'running'
        RETURNING cancel_requested, replica_id
    ), appended AS (
        INSERT INTO events (job_id, seq, type, attempt, data)
        SELECT :job_id, :seq, :type, :attempt, CAST(:data AS jsonb) FROM fenced
    )
    SELECT cancel_requested, stop.reason, stop.stopped_by FROM fenced AS job"""  # noqa: S608  two constants
    + _STOP
)
_HEARD = text(
    "SELECT cancel_requested, stop.reason, stop.stopped_by FROM jobs AS job"  # noqa: S608
    + _STOP
    + " WHERE id = :job_id"
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a worker is told while it appends: a cancellation, or why probing was stopped."""

    cancel: bool
    stop: str | None


def get(db: Session, job_id: uuid.UUID) -> Job | None:
    """One job."""
    return db.get(Job, job_id)


def ended(db: Session, job_ids: Sequence[uuid.UUID]) -> Sequence[Job]:
    """Jobs as this transaction has just ended them."""
    query = select(Job).where(Job.id.in_(job_ids)).order_by(Job.created_at)
    return db.scalars(query, execution_options={"populate_existing": True}).all()


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


@dataclass(frozen=True, slots=True)
class Filters:
    """Which jobs a list shows; None: all."""

    replica_id: uuid.UUID | None = None
    state: str | None = None
    outcome: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None


def page(db: Session, wanted: Filters, *, limit: int, cursor: str | None) -> Sequence[Job]:
    """Jobs, the newest first; one more than ``limit`` when there is another page."""
    query = select(Job)
    if wanted.replica_id is not None:
        query = query.where(Job.replica_id == wanted.replica_id)
    if wanted.state is not None:
        query = query.where(Job.state == wanted.state)
    if wanted.outcome is not None:
        query = query.join(JobVerdict, JobVerdict.job_id == Job.id).where(JobVerdict.outcome == wanted.outcome)
    if wanted.since is not None:
        query = query.where(Job.created_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(Job.created_at < wanted.until)
    return db.scalars(paging.newest_first(query, Job.created_at, Job.id, limit=limit, cursor=cursor)).all()


def verdicts(db: Session, job_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, dict[str, Any]]:
    """Verdict documents by job."""
    rows = db.execute(select(JobVerdict.job_id, JobVerdict.document).where(JobVerdict.job_id.in_(job_ids)))
    return {row.job_id: row.document for row in rows}


def last_verdict(db: Session, replica_id: uuid.UUID) -> tuple[Job, dict[str, Any]] | None:
    """The newest job of a replica that has a verdict, and the verdict's document."""
    query = (
        select(Job, JobVerdict.document)
        .join(JobVerdict, JobVerdict.job_id == Job.id)
        .where(Job.replica_id == replica_id)
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(1)
    )
    row = db.execute(query).first()
    return None if row is None else (row[0], row[1])


def events(db: Session, job_id: uuid.UUID) -> list[Event]:
    """The whole log of a job, in order."""
    rows = db.execute(select(JobEvent.type, JobEvent.data).where(JobEvent.job_id == job_id).order_by(JobEvent.seq))
    return [Event(row.type, row.data) for row in rows]


def last_seq(db: Session, job_id: uuid.UUID) -> int:
    """Number of a job's last event; -1 when there is none."""
    return db.execute(
        select(func.coalesce(func.max(JobEvent.seq), -1)).where(JobEvent.job_id == job_id)
    ).scalar_one()


def some(db: Session, job_ids: Sequence[uuid.UUID]) -> Sequence[Job]:
    """Jobs of these ids, those that exist."""
    return db.scalars(select(Job).where(Job.id.in_(job_ids))).all()


def events_after(db: Session, seen: Mapping[uuid.UUID, int], limit: int) -> Sequence[JobEvent]:
    """Events of jobs after a number each, in order, at most ``limit`` a job."""
    wanted = (
        func.unnest(cast(list(seen.keys()), ARRAY(Uuid)), cast(list(seen.values()), ARRAY(Integer)))
        .table_valued(column("job_id", Uuid), column("after", Integer))
        .render_derived("wanted")
    )
    news = (
        select(JobEvent)
        .where(JobEvent.job_id == wanted.c.job_id, JobEvent.seq > wanted.c.after)
        .order_by(JobEvent.seq)
        .limit(limit)
        .lateral("news")
    )
    event = aliased(JobEvent, news)
    return db.scalars(select(event).select_from(wanted.join(news, true())).order_by(event.job_id, event.seq)).all()


def answers(db: Session, job_id: uuid.UUID, *, after: int, limit: int) -> Sequence[JobEvent]:
    """Measurements of a job after a sequence number; one more than ``limit`` when there are more."""
    query = select(JobEvent).where(
        JobEvent.job_id == job_id, JobEvent.seq > after, JobEvent.type.in_(sorted(ANSWERS))
    )
    return db.scalars(query.order_by(JobEvent.seq).limit(limit + 1)).all()


def delete_events(db: Session, older_than: dt.timedelta, jobs: int = 10) -> int:
    """Delete the events of some jobs that ended so long ago; a job may have 20,000, so a few jobs at a time."""
    old = (
        select(Job.id)
        .where(Job.events_deleted_at.is_(None), Job.finished_at < func.now() - older_than)
        .order_by(Job.finished_at)
        .limit(jobs)
        .with_for_update(skip_locked=True)
    )
    ids = list(
        db.scalars(update(Job).where(Job.id.in_(old)).values(events_deleted_at=func.now()).returning(Job.id))
    )
    db.execute(delete(JobEvent).where(JobEvent.job_id.in_(ids)))
    return len(ids)


def healthy_baseline(db: Session, job: Job) -> float | None:
    """Baseline of the replica's last healthy job under the same settings and topology."""
    told = job.settings.get("adaptive")  # jobs of an earlier version have none
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
            func.coalesce(Job.settings["adaptive"], literal(None, JSONB)) == literal(told, JSONB),
        )
        .order_by(JobVerdict.created_at.desc())
        .limit(1)
    )
    return db.scalar(query)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def claim(db: Session, job_id: uuid.UUID, lease_s: float) -> tuple[Job | None, bool]:
    """Take a job that nobody holds; the attempt number goes up and fences off whoever had it before.

    Returns
    -------
    tuple of (Job or None, bool)
        The job, and whether its last holder went silent instead of giving it back.
    """
    free = or_(Job.lease_until.is_(None), Job.lease_until < func.now())
    held_before = select(Job.lease_until.is_not(None)).where(Job.id == job_id, _LIVE, free).with_for_update()
    silent = db.scalar(held_before)
    if silent is None:
        return None, False
    statement = (
        update(Job)
        .where(Job.id == job_id)
        .values(
            state="running",
            attempt=Job.attempt + 1,
            lease_until=func.now() + dt.timedelta(seconds=lease_s),
            hinted_at=None,  # followed: should this holder go silent, the next hint is due at once
            started_at=func.coalesce(Job.started_at, func.now()),
        )
        .returning(Job)
    )
    return db.scalar(statement, execution_options={"populate_existing": True}), silent


def seconds_left(db: Session, job_id: uuid.UUID) -> float:
    """Seconds until a job's deadline; negative when it has passed."""
    left = func.extract("epoch", Job.deadline_at - func.now())
    return float(db.execute(select(left).where(Job.id == job_id)).scalar_one())


def append(
    db: Connection,
    job: Job,
    seq: int,
    event: Event,
    *,
    progress: tuple[int, int],
    phase: int | None,
    lease_s: float,
) -> Heard | None:
    """Append an event under the lease, in one statement: an autocommit connection saves two round trips.

    Returns
    -------
    Heard or None
        Whether the job shall end; None when the lease is lost and nothing was written.
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
    row = db.execute(_APPEND, values).one_or_none()
    return None if row is None else Heard(row.cancel_requested, _stop_text(row.reason, row.stopped_by))


def heard(db: Session, job_id: uuid.UUID) -> Heard:
    """What `append` would tell, at any time."""
    row = db.execute(_HEARD, {"job_id": job_id}).one()
    return Heard(row.cancel_requested, _stop_text(row.reason, row.stopped_by))


def _stop_text(reason: str | None, stopped_by: str | None) -> str | None:
    return None if reason is None else f"probing was stopped by {stopped_by!r}: {reason}"


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
    nobody_holds_it = or_(Job.lease_until.is_(None), Job.lease_until < func.now())
    due = (
        select(Job.id)
        .where(_LIVE, nobody_holds_it, stale_hint)
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
