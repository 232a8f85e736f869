"""Hints to the workers. PostgreSQL is the truth: a hint that is lost is sent again by the recovery sweep."""

from __future__ import annotations

import logging
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
RECOVER = "faultsense.recover"
RETAIN = "faultsense.retain"
DELIVER = "faultsense.deliver"
QUEUE = "faultsense"
# Deliveries have a queue of their own: however many there are, every second message a worker takes is a job's.
WEBHOOK_QUEUE = "faultsense-webhooks"
ROUTES = {**{name: {"queue": QUEUE} for name in (LOCALIZE, RECOVER, RETAIN)}, DELIVER: {"queue": WEBHOOK_QUEUE}}
# Touched by the tick whenever it sends.
TICK_FILE = Path(tempfile.gettempdir()) / "faultsense-tick"
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
    """Seconds since the tick on this machine last sent something; None when it never did."""
    return time.time() - TICK_FILE.stat().st_mtime if TICK_FILE.exists() else None


def hint(task: str, *args: str) -> bool:
    """Send a task by name; False when the broker cannot be reached.

    Arguments are ids only: what a message says may be old when it is read.
    """
    app = _producer(get_settings().redis_url.get_secret_value())
    try:
        app.send_task(task, args=list(args), retry=False)
    except (OperationalError, OSError) as error:
        logger.warning("the broker cannot be reached (%s); the recovery sweep will send it", type(error).__name__)
        return False
    return True


def hint_after_commit(db: Session, task: str) -> None:
    """Send a task once this transaction is there for a worker to see; a rollback forgets it."""
    db.info.setdefault(_WANTED, set()).add(task)


@event.listens_for(Session, "after_commit")
def _send_wanted(db: Session) -> None:
    for task in db.info.pop(_WANTED, ()):
        hint(task)


@event.listens_for(Session, "after_rollback")
def _forget_wanted(db: Session) -> None:
    db.info.pop(_WANTED, None)
