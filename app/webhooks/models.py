"""Tables of webhook endpoints, their events, deliveries and attempts."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    String,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base, CreatedAt, Id
from app.kit.secrets import ENCRYPTED

STATES = ("pending", "delivered", "exhausted", "disabled")
PENDING = "state = 'pending'"


class Webhook(Base):
    """A URL that wants events. With a ``job_id`` it gets that job's alone (``webhook_url`` of a request).

    Secrets are encrypted; ``old_secret`` signs beside the new one until ``old_secret_until``.
    """

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_job_id_created_at_id", "job_id", "created_at", "id"),)

    id: Mapped[Id]
    job_id: Mapped[uuid.UUID | None]
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[str]] = mapped_column(ARRAY(String(40)))
    description: Mapped[str] = mapped_column(String(200))
    enabled: Mapped[bool]
    disabled_reason: Mapped[str | None] = mapped_column(String(200))
    disabled_at: Mapped[dt.datetime | None]
    secret: Mapped[bytes | None] = mapped_column(LargeBinary, info=ENCRYPTED)
    old_secret: Mapped[bytes | None] = mapped_column(LargeBinary, info=ENCRYPTED)
    old_secret_until: Mapped[dt.datetime | None]
    created_at: Mapped[CreatedAt]


class WebhookEvent(Base):
    """What happened, once for all endpoints; every try sends these bytes under this id."""

    __tablename__ = "webhook_events"
    __table_args__ = (Index("ix_webhook_events_created_at", "created_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    type: Mapped[str] = mapped_column(String(40))
    body: Mapped[str] = mapped_column(Text)
    created_at: Mapped[CreatedAt]


class WebhookDelivery(Base):
    """An event on its way to an endpoint.

    Of deliveries with the same ``subject`` (a job) an endpoint gets the one with the lower ``seq`` first.
    ``tries`` counts along the schedule and starts anew with a replay; ``attempts`` counts all and fences writes.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint(f"state IN {STATES}", name="state"),
        Index("uq_webhook_deliveries_event", "event_id", "webhook_id", unique=True),
        Index("ix_webhook_deliveries_log", "webhook_id", "created_at", "id"),
        Index("ix_webhook_deliveries_due", "webhook_id", "due_at", "seq", postgresql_where=text(PENDING)),
        Index("ix_webhook_deliveries_order", "webhook_id", "subject", "seq", postgresql_where=text(PENDING)),
        Index("ix_webhook_deliveries_lease", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    )

    id: Mapped[Id]
    webhook_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event_id: Mapped[str] = mapped_column(ForeignKey("webhook_events.id", ondelete="CASCADE"))
    subject: Mapped[uuid.UUID | None]
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    state: Mapped[str] = mapped_column(String(20), default="pending")
    tries: Mapped[int] = mapped_column(default=0)
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[dt.datetime]
    lease_until: Mapped[dt.datetime | None]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[dt.datetime | None]


class WebhookAttempt(Base):
    """One request of a delivery. Written when it is taken up, completed when its outcome is known."""

    __tablename__ = "webhook_attempts"

    delivery_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    started_at: Mapped[CreatedAt]
    duration_ms: Mapped[float | None]
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(String(300))
