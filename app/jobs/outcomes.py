"""Tells webhooks how jobs end, in the transaction that ends them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.jobs import documents, repository
from app.webhooks import service as webhooks


def announce(db: Session, job_ids: Sequence[uuid.UUID]) -> None:
    """Publish the end of jobs: to be called by whatever ends one, before it commits.

    A job that has a verdict is completed, also when it was cancelled in the middle; one without a verdict failed,
    whether by an error, its deadline, or a cancellation before any probe. ``data.state`` says which.
    """
    for job in documents.with_verdicts(db, repository.ended(db, job_ids)):
        assert job.finished_at is not None
        webhooks.publish(
            db,
            "job.failed" if job.verdict is None else "job.completed",
            subject=job.id,
            data=job.model_dump(mode="json"),
            at=job.finished_at,
        )
