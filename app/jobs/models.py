"""Tables of jobs, their event logs and verdicts."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, SmallInteger, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base, CreatedAt, Id

STATES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
LIVE = "state IN ('queued', 'running')"


class Job(Base):
    """One localization. At most one live job a replica, by a partial unique index.

    ``attempt`` fences writes: a worker that lost its lease writes nothing more. ``lease_until`` is null while
    nobody works on it; ``hinted_at`` is when a worker was last told of it.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"state IN {STATES}", name="state"),
        Index("uq_jobs_live", "replica_id", unique=True, postgresql_where=text(LIVE)),
        Index("ix_jobs_live_lease", "lease_until", postgresql_where=text(LIVE)),
        Index("ix_jobs_created_at_id", "created_at", "id"),
        Index("ix_jobs_finished_at_kept", "finished_at", postgresql_where=text("events_deleted_at IS NULL")),
        Index("ix_jobs_replica_id_created_at_id", "replica_id", "created_at", "id"),
    )

    id: Mapped[Id]
    replica_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("replicas.id"))
    state: Mapped[str] = mapped_column(String(20), default="queued")
    phase: Mapped[int | None] = mapped_column(SmallInteger)
    done: Mapped[int] = mapped_column(default=0)
    planned: Mapped[int]
    attempt: Mapped[int] = mapped_column(default=0)
    lease_until: Mapped[dt.datetime | None]
    hinted_at: Mapped[dt.datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    request: Mapped[dict[str, Any]]
    settings: Mapped[dict[str, Any]]
    topology_version: Mapped[int | None]
    created_at: Mapped[CreatedAt]
    started_at: Mapped[dt.datetime | None]
    finished_at: Mapped[dt.datetime | None]
    deadline_at: Mapped[dt.datetime]
    error: Mapped[dict[str, Any] | None]
    events_deleted_at: Mapped[dt.datetime | None]


class JobEvent(Base):
    """One line of a job's log."""

    __tablename__ = "events"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    type: Mapped[str] = mapped_column(String(20))
    attempt: Mapped[int]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[CreatedAt]


class JobWindow(Base):
    """The measured phase of one attempt at a job: its selection records, or why there are none."""

    __tablename__ = "job_windows"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    record: Mapped[dict[str, Any] | None]
    target: Mapped[dict[str, Any] | None]
    failure: Mapped[str | None]
    created_at: Mapped[CreatedAt]


class JobVerdict(Base):
    """The verdict of a job, and the baseline that later jobs compare with."""

    __tablename__ = "verdicts"
    __table_args__ = (Index("ix_verdicts_outcome_created_at", "outcome", "created_at"),)

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(20))
    baseline_ms: Mapped[float | None]
    document: Mapped[dict[str, Any]]
    created_at: Mapped[CreatedAt]
