"""Thin tasks: ids in, a service call, nothing out."""

from __future__ import annotations

import datetime as dt
import logging
import uuid

from celery.signals import worker_process_init
from sqlalchemy.orm import Session

from app.jobs import service
from app.jobs.runner import run_slice
from app.kit import audit, counters, idempotency, retention
from app.kit.broker import DELIVER, LOCALIZE, RECOVER, RETAIN, hint
from app.kit.db import get_engine
from app.settings import get_settings
from app.webhooks import delivery
from app.webhooks import repository as webhooks
from workers.celery_app import RETAIN_EVERY_S, celery_app

logger = logging.getLogger(__name__)


@worker_process_init.connect
def _fresh_connections(**_: object) -> None:
    """A forked child must not share the parent's database sockets."""
    get_engine().dispose(close=False)


@celery_app.task(name=LOCALIZE)
def localize(job_id: str) -> None:
    """Work on a job for one slice; send it again when it needs another."""
    if run_slice(get_engine(), get_settings(), uuid.UUID(job_id)) == "again":
        hint(LOCALIZE, job_id)


@celery_app.task(name=RECOVER)
def recover() -> None:
    """Find jobs whose worker went silent, and jobs that no worker has taken."""
    with Session(get_engine()) as db:
        due = service.sweep(db, get_settings().requeue_after_s)
        counters.add(db, [("sweeps_total", {}, 1)])
        db.commit()
    for job_id in due:
        logger.warning("job %s: told to a worker again", job_id)
        hint(LOCALIZE, str(job_id))


@celery_app.task(name=RETAIN)
def retain() -> None:
    """Delete what has been kept long enough, in small batches; what is left waits for the next tick."""
    settings = get_settings()
    retention.delete_in_batches(
        get_engine(),
        [
            lambda db: service.delete_old_events(db, dt.timedelta(days=settings.retention_events_days)),
            lambda db: webhooks.delete_old(db, dt.timedelta(days=settings.retention_webhooks_days)),
            lambda db: audit.delete_old(db, dt.timedelta(days=settings.retention_audit_days)),
            idempotency.delete_expired,
        ],
        seconds=RETAIN_EVERY_S / 3,
    )


@celery_app.task(name=DELIVER)
def deliver() -> None:
    """Send one batch of webhooks; more of them take their turn behind the jobs."""
    if delivery.deliver(get_engine(), get_settings()):
        hint(DELIVER)
