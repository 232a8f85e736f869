"""SQL of the measured phases of jobs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.jobs.models import JobEvent, JobWindow
from app.localization.events import ANSWERS


def of_job(db: Session, job_id: uuid.UUID) -> Sequence[JobWindow]:
    """Measured phases of a job, in order."""
    return db.scalars(select(JobWindow).where(JobWindow.job_id == job_id).order_by(JobWindow.attempt)).all()


def attempts(db: Session, job_id: uuid.UUID) -> list[int]:
    """Attempts that stored an answer, ascending."""
    answers = JobEvent.type.in_(ANSWERS)
    query = select(JobEvent.attempt).where(JobEvent.job_id == job_id, answers).distinct()
    return list(db.scalars(query.order_by(JobEvent.attempt)))
