"""SQL of webhooks. Times are the database's own: a worker's clock decides nothing."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import any_, delete, exists, func, literal, select, text, update
from sqlalchemy.orm import Session

from app.kit import counters, paging
from app.webhooks.models import Webhook, WebhookAttempt, WebhookDelivery, WebhookEvent

Delivery = tuple[WebhookDelivery, str]
_WAITING = text(
    """
    SELECT count(*) AS number,
           coalesce(greatest(0, extract(epoch FROM now() - min(d.due_at) FILTER (WHERE NOT EXISTS (
               SELECT FROM webhook_deliveries earlier
               WHERE earlier.webhook_id = d.webhook_id AND earlier.subject = d.subject
                 AND earlier.state = 'pending' AND earlier.seq < d.seq
           )))), 0) AS age
    FROM webhook_deliveries d WHERE d.state = 'pending'
    """
)


def get(db: Session, webhook_id: uuid.UUID, *, lock: bool = False) -> Webhook | None:
    """One endpoint."""
    return db.get(Webhook, webhook_id, with_for_update=lock or None, populate_existing=lock)


def page(db: Session, *, limit: int, cursor: str | None, job_id: uuid.UUID | None) -> Sequence[Webhook]:
    """Endpoints for all jobs, or for one, the newest first; one more than ``limit`` when there are more."""
    query = select(Webhook).where(Webhook.job_id.is_not_distinct_from(job_id))
    return db.scalars(paging.newest_first(query, Webhook.created_at, Webhook.id, limit=limit, cursor=cursor)).all()


def subscribed(db: Session, type_: str, subject: uuid.UUID) -> Sequence[uuid.UUID]:
    """Endpoints that want an event. They can be neither deleted nor disabled before the transaction ends."""
    query = select(Webhook.id).where(
        Webhook.enabled,
        literal(type_) == any_(Webhook.events),
        (Webhook.job_id == subject) | Webhook.job_id.is_(None),
    )
    return db.scalars(query.with_for_update(read=True)).all()


def now(db: Session) -> dt.datetime:
    """When this transaction began, by the database's clock."""
    return db.execute(select(func.now())).scalar_one()


def add_event(
    db: Session, event: WebhookEvent, webhook_ids: Sequence[uuid.UUID], subject: uuid.UUID | None, delay_s: float
) -> list[WebhookDelivery]:
    """Store an event with a delivery for each endpoint."""
    db.add(event)
    db.flush()
    due_at = func.now() + dt.timedelta(seconds=delay_s)
    rows = [
        WebhookDelivery(webhook_id=webhook_id, event_id=event.id, subject=subject, due_at=due_at)
        for webhook_id in webhook_ids
    ]
    db.add_all(rows)
    db.flush()
    return rows


def delivery(db: Session, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> Delivery | None:
    """One delivery of an endpoint, with its event's type."""
    query = _deliveries(webhook_id).where(WebhookDelivery.id == delivery_id)
    row = db.execute(query, execution_options={"populate_existing": True}).one_or_none()
    return None if row is None else (row[0], row[1])


def deliveries(
    db: Session, webhook_id: uuid.UUID, *, limit: int, cursor: str | None, state: str | None
) -> Sequence[Delivery]:
    """Deliveries of an endpoint, the newest first; one more than ``limit`` when there are more."""
    query = _deliveries(webhook_id)
    if state is not None:
        query = query.where(WebhookDelivery.state == state)
    columns = WebhookDelivery.created_at, WebhookDelivery.id
    found = db.execute(paging.newest_first(query, *columns, limit=limit, cursor=cursor))
    return [(row[0], row[1]) for row in found]


def _deliveries(webhook_id: uuid.UUID) -> Any:
    return (
        select(WebhookDelivery, WebhookEvent.type)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.webhook_id == webhook_id)
    )


def attempts(db: Session, delivery_ids: Sequence[uuid.UUID], last: int) -> dict[uuid.UUID, list[WebhookAttempt]]:
    """The last attempts of each delivery, in order."""
    found: dict[uuid.UUID, list[WebhookAttempt]] = {delivery_id: [] for delivery_id in delivery_ids}
    query = (
        select(WebhookAttempt)
        .join(WebhookDelivery, WebhookDelivery.id == WebhookAttempt.delivery_id)
        .where(
            WebhookAttempt.delivery_id.in_(delivery_ids), WebhookAttempt.number > WebhookDelivery.attempts - last
        )
        .order_by(WebhookAttempt.delivery_id, WebhookAttempt.number)
    )
    for row in db.scalars(query):
        found[row.delivery_id].append(row)
    return found


def replay(db: Session, delivery_id: uuid.UUID) -> None:
    """Make a delivery due now, with its whole schedule before it."""
    statement = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id)
        .values(state="pending", tries=0, due_at=func.now(), finished_at=None)
    )
    db.execute(statement)


def give_up_pending(db: Session, webhook_id: uuid.UUID) -> None:
    """End what a disabled endpoint was still to get."""
    statement = (
        update(WebhookDelivery)
        .where(WebhookDelivery.webhook_id == webhook_id, WebhookDelivery.state == "pending")
        .values(state="disabled", finished_at=func.now())
        .returning(WebhookDelivery.id)
    )
    count_ended(db, "disabled", len(db.execute(statement).all()))


def count_ended(db: Session, state: str, number: int) -> None:
    """Count deliveries that ended in a state, for metrics."""
    counters.add(db, [("webhook_deliveries_total", {"state": state}, number)] if number else [])


def forget_old_secrets(db: Session) -> None:
    """Erase secrets whose grace is over."""
    statement = (
        update(Webhook).where(Webhook.old_secret_until < func.now()).values(old_secret=None, old_secret_until=None)
    )
    db.execute(statement)


def delete_old(db: Session, age: dt.timedelta, limit: int = 500) -> int:
    """Delete a batch of events that are so old and on their way to nobody, with their logs.

    An endpoint of a job's request goes with the last of its events.
    """
    pending = exists().where(WebhookDelivery.event_id == WebhookEvent.id, WebhookDelivery.state == "pending")
    old = select(WebhookEvent.id).where(WebhookEvent.created_at < func.now() - age, ~pending).limit(limit)
    events = db.execute(delete(WebhookEvent).where(WebhookEvent.id.in_(old)).returning(WebhookEvent.id)).all()
    kept = exists().where(WebhookDelivery.webhook_id == Webhook.id)
    unused = (
        select(Webhook.id)
        .where(Webhook.job_id.is_not(None), Webhook.created_at < func.now() - age, ~kept)
        .limit(limit)
    )
    hooks = db.execute(delete(Webhook).where(Webhook.id.in_(unused)).returning(Webhook.id)).all()
    return len(events) + len(hooks)


def waiting(db: Session) -> tuple[int, float]:
    """What is still to be delivered.

    Returns
    -------
    tuple of (int, float)
        How many deliveries wait for their next attempt, and for how long the oldest has been due, in seconds.
        One that must let an earlier one of its job go first is not due.
    """
    row = db.execute(_WAITING).one()
    return row.number, float(row.age)
