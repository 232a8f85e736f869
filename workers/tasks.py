"""Thin tasks: ids in, a service call, nothing out."""

from __future__ import annotations

import uuid

from celery.signals import worker_process_init

from app.jobs.runner import run_slice
from app.kit.broker import DELIVER, LOCALIZE, hint
from app.kit.db import get_engine
from app.settings import get_settings
from app.webhooks import delivery
from workers.celery_app import celery_app, stopping


@worker_process_init.connect
def _fresh_connections(**_: object) -> None:
    """A forked child must not share the parent's database sockets."""
    get_engine().dispose(close=False)


@celery_app.task(name=LOCALIZE)
def localize(job_id: str) -> None:
    """Work on a job for one slice; send it again when it needs another, or when this worker is being stopped."""
    if run_slice(get_engine(), get_settings(), uuid.UUID(job_id), stopping=stopping.is_set) == "again":
        hint(LOCALIZE, job_id)


@celery_app.task(name=DELIVER)
def deliver() -> None:
    """Send one batch of webhooks; more of them take their turn behind the jobs."""
    if delivery.deliver(get_engine(), get_settings()):
        hint(DELIVER)
