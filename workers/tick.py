"""The tick: looks for lost jobs and due webhooks, and deletes what was kept long enough.

It works on PostgreSQL by itself and sends hints: what finds a lost worker must not wait in a queue for one. Where
Redis is away the hints are lost and the next round sends them again. More than one tick does no harm.
"""

from __future__ import annotations

import datetime as dt
import logging
import signal
import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from app.jobs import service as jobs
from app.kit import audit, broker, counters, idempotency, logs, retention
from app.kit.db import get_engine
from app.settings import Settings, get_settings
from app.webhooks import repository as webhooks

logger = logging.getLogger(__name__)

RETAIN_EVERY_S = 60.0


def sweep(engine: Engine, settings: Settings) -> None:
    """Find jobs whose worker went silent, and jobs that no worker has taken."""
    with Session(engine) as db:
        due = jobs.sweep(db, settings.requeue_after_s)
        counters.add(db, [("sweeps_total", {}, 1)])
        db.commit()
    for job_id in due:
        logger.warning("job %s: told to a worker again", job_id)
        broker.hint(broker.LOCALIZE, str(job_id))


def deliver(_: Engine, settings: Settings) -> None:
    """Tell a worker to look for due webhooks; a message that waited longer than a round has a successor."""
    broker.hint(broker.DELIVER, expires_s=settings.webhook_tick_s)


def retain(engine: Engine, settings: Settings) -> None:
    """Delete what has been kept long enough, in small batches; what is left waits for the next round."""
    retention.delete_in_batches(
        engine,
        [
            lambda db: jobs.delete_old_events(db, dt.timedelta(days=settings.retention_events_days)),
            lambda db: webhooks.delete_old(db, dt.timedelta(days=settings.retention_webhooks_days)),
            lambda db: audit.delete_old(db, dt.timedelta(days=settings.retention_audit_days)),
            idempotency.delete_expired,
        ],
        seconds=RETAIN_EVERY_S / 3,
    )


def run(engine: Engine, settings: Settings, over: threading.Event) -> None:
    """Do everything in its rhythm until it is over. Without PostgreSQL there is nothing to do but to try again."""
    rhythm: dict[Callable[[Engine, Settings], None], float] = {
        sweep: settings.sweep_s,
        deliver: settings.webhook_tick_s,
        retain: RETAIN_EVERY_S,
    }
    due = dict.fromkeys(rhythm, time.monotonic())
    while not over.wait(max(0.0, min(due.values()) - time.monotonic())):
        for task, every_s in rhythm.items():
            if due[task] > time.monotonic():
                continue
            due[task] = time.monotonic() + every_s
            try:
                task(engine, settings)
            except (DBAPIError, PoolTimeoutError) as error:
                logger.warning("tick: %s failed: the database said %s", task.__name__, type(error).__name__)
            else:
                broker.tick_file().touch()


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings = get_settings()
    logs.configure(settings)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    run(get_engine(), settings, over)


if __name__ == "__main__":
    main()
