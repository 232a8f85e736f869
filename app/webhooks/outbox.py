"""SQL of the outbox: which deliveries are taken up, and how their outcomes are kept."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Update, func, text, update
from sqlalchemy.orm import Session

from app.kit import counters
from app.webhooks import repository
from app.webhooks.models import Webhook, WebhookAttempt, WebhookDelivery
from app.webhooks.sender import MAX_WAIT, Outcome

# Deliveries of one endpoint in a batch: one that never answers must leave room for the others.
PER_ENDPOINT = 8
JITTER = 0.1

# Due deliveries that nobody holds, of enabled endpoints, fairly over endpoints, and none before an earlier one
# of the same subject: a delivery stays pending while it is on its way, so one in another worker's hands counts.
_CLAIM = text(
    """
    WITH due AS (
        SELECT found.id
        FROM (SELECT DISTINCT webhook_id FROM webhook_deliveries
              WHERE state = 'pending' AND due_at <= now()) AS busy
        JOIN webhooks w ON w.id = busy.webhook_id AND w.enabled
        CROSS JOIN LATERAL (
            SELECT d.id, d.due_at, d.seq
            FROM webhook_deliveries d
            WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.due_at <= now()
              AND (d.lease_until IS NULL OR d.lease_until < now())
              AND NOT EXISTS (
                  SELECT FROM webhook_deliveries earlier
                  WHERE earlier.webhook_id = d.webhook_id AND earlier.subject = d.subject
                    AND earlier.state = 'pending' AND earlier.seq < d.seq
              )
            ORDER BY d.due_at, d.seq
            LIMIT :per_endpoint
            FOR UPDATE SKIP LOCKED
        ) AS found
        ORDER BY found.due_at, found.seq
        LIMIT greatest(0, :in_flight - (SELECT count(*) FROM webhook_deliveries WHERE lease_until >= now()))
    ), claimed AS (
        UPDATE webhook_deliveries d
        SET attempts = attempts + 1, tries = tries + 1, lease_until = now() + make_interval(secs => :lease_s)
        FROM due WHERE d.id = due.id
        RETURNING d.id, d.webhook_id, d.event_id, d.attempts, d.tries
    ), logged AS (
        INSERT INTO webhook_attempts (delivery_id, number) SELECT id, attempts FROM claimed
    )
    SELECT c.id, c.webhook_id, c.event_id, c.attempts AS attempt, c.tries, e.body, w.url, w.secret,
           CASE WHEN w.old_secret_until > now() THEN w.old_secret END AS old_secret,
           floor(extract(epoch FROM now()))::bigint AS sent_at
    FROM claimed c
    JOIN webhooks w ON w.id = c.webhook_id
    JOIN webhook_events e ON e.id = c.event_id
    """
)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery in this worker's hands.

    ``sent_at`` is the database's time in seconds since 1970; ``secret`` and ``old_secret`` are encrypted.
    """

    id: uuid.UUID
    webhook_id: uuid.UUID
    event_id: str
    attempt: int
    tries: int
    body: str
    url: str
    secret: bytes | None
    old_secret: bytes | None
    sent_at: int


def claim(db: Session, *, in_flight: int, lease_s: float) -> list[Claimed]:
    """Take up what is due, as far as fewer than ``in_flight`` deliveries are on their way in all workers."""
    values = {"in_flight": in_flight, "per_endpoint": PER_ENDPOINT, "lease_s": lease_s}
    return [Claimed(**row) for row in db.execute(_CLAIM, values).mappings()]


def record(db: Session, taken: Claimed, outcome: Outcome, schedule_s: Sequence[float]) -> None:
    """Keep an outcome, and say when the next try is due; only the log when a later attempt has the delivery."""
    log = (
        update(WebhookAttempt)
        .where(WebhookAttempt.delivery_id == taken.id, WebhookAttempt.number == taken.attempt)
        .values(status=outcome.status, error=outcome.error, duration_ms=outcome.duration_ms)
    )
    db.execute(log)
    if outcome.gone:
        _disable(db, taken, outcome)  # first: who deletes an endpoint locks in the same order
    result = "delivered" if outcome.error is None else "failed"
    counters.add(db, [("webhook_attempts_total", {"result": result}, 1)])
    mine = update(WebhookDelivery).where(WebhookDelivery.id == taken.id, WebhookDelivery.attempts == taken.attempt)
    if outcome.error is None:
        _end(db, mine.values(lease_until=None), "delivered")
        return
    db.execute(mine.values(lease_until=None))
    waiting = mine.where(WebhookDelivery.state == "pending")
    if taken.tries >= len(schedule_s):
        _end(db, waiting, "exhausted")
    else:
        db.execute(waiting.values(due_at=_next_due(schedule_s[taken.tries], outcome)))


def _end(db: Session, mine: Update, state: str) -> None:
    ended = db.execute(mine.values(state=state, finished_at=func.now()).returning(WebhookDelivery.id)).all()
    repository.count_ended(db, state, len(ended))


def _next_due(delay_s: float, outcome: Outcome) -> ColumnElement[dt.datetime]:
    jitter = 1 - JITTER + 2 * JITTER * func.random()
    planned = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, delay_s * jitter)
    if outcome.wait is None:
        return planned
    asked = func.now() + outcome.wait if isinstance(outcome.wait, dt.timedelta) else outcome.wait
    return func.greatest(planned, func.least(asked, func.now() + MAX_WAIT))


def _disable(db: Session, taken: Claimed, outcome: Outcome) -> None:
    """Disable an endpoint, unless it was given another URL meanwhile."""
    statement = (
        update(Webhook)
        .where(Webhook.id == taken.webhook_id, Webhook.url == taken.url, Webhook.enabled)
        .values(enabled=False, disabled_at=func.now(), disabled_reason=f"the receiver {outcome.error}")
        .returning(Webhook.id)
    )
    if db.execute(statement).first() is not None:
        repository.give_up_pending(db, taken.webhook_id)
