"""Hints to the workers. PostgreSQL is the truth: a hint that is lost is sent again by the recovery sweep."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import event
from sqlalchemy.orm import Session

from app.settings import get_settings

logger = logging.getLogger(__name__)

LOCALIZE = "faultsense.localize"
DELIVER = "faultsense.deliver"
QUEUE = "faultsense"
# Deliveries have a queue of their own: however many there are, every second message a worker takes is a job's.
WEBHOOK_QUEUE = "faultsense-webhooks"
ROUTES = {LOCALIZE: {"queue": QUEUE}, DELIVER: {"queue": WEBHOOK_QUEUE}}
_WANTED = "hints_after_commit"


@lru_cache(maxsize=4)
def _producer(url: str) -> Celery:
    app = Celery("faultsense-producer", broker=url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_routes=ROUTES,
        task_ignore_result=True,
        broker_connection_timeout=2,
        broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
    )
    return app


def worker_answers(host: str, timeout_s: float = 5.0) -> bool:
    """Whether a worker on a host answers through the broker."""
    app = _producer(get_settings().redis_url.get_secret_value())
    try:
        replies = app.control.ping(timeout=timeout_s)
    except (OperationalError, OSError):
        return False
    return any(name.endswith(f"@{host}") for reply in replies for name in reply)


def tick_age_s() -> float | None:
    """Seconds since this deployment's tick on this machine last did something; None when it never did."""
    file = tick_file()
    return time.time() - file.stat().st_mtime if file.exists() else None


def tick_file() -> Path:
    """What the tick touches after each round: one a database, user and machine."""
    url = get_settings().database_url.get_secret_value()
    deployment = hashlib.sha256(f"{os.getuid()} {url}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"faultsense-tick-{deployment}"


def hint(task: str, *args: str, expires_s: float | None = None) -> bool:
    """Send a task by name; False when the broker cannot be reached.

    Arguments are ids only: what a message says may be old when it is read.
    """
    app = _producer(get_settings().redis_url.get_secret_value())
    try:
        app.send_task(task, args=list(args), retry=False, expires=expires_s)
    except (OperationalError, OSError) as error:
        logger.warning("the broker cannot be reached (%s); the recovery sweep will send it", type(error).__name__)
        return False
    return True


def hint_after_commit(db: Session, task: str, *args: str) -> None:
    """Send a task once this transaction is there for a worker to see; a rollback forgets it."""
    db.info.setdefault(_WANTED, set()).add((task, *args))


@event.listens_for(Session, "after_commit")
def _send_wanted(db: Session) -> None:
    for wanted in db.info.pop(_WANTED, ()):
        hint(*wanted)


@event.listens_for(Session, "after_rollback")
def _forget_wanted(db: Session) -> None:
    db.info.pop(_WANTED, None)
