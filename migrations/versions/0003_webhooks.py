"""Webhook endpoints, events, deliveries and attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PENDING = "state = 'pending'"


def _moment(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not now, server_default=default)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.ARRAY(sa.String(40)), nullable=False),
        sa.Column("description", sa.String(200), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(200)),
        _moment("disabled_at"),
        sa.Column("secret", sa.LargeBinary()),
        sa.Column("old_secret", sa.LargeBinary()),
        _moment("old_secret_until"),
        _moment("created_at", now=True),
    )
    op.create_index("ix_webhooks_job_id_created_at_id", "webhooks", ["job_id", "created_at", "id"])
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        _moment("created_at", now=True),
    )
    op.create_index("ix_webhook_events_created_at", "webhook_events", ["created_at"])
    _create_deliveries()


def _create_deliveries() -> None:
    table = "webhook_deliveries"
    cascade = {"ondelete": "CASCADE"}
    op.create_table(
        table,
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("webhook_id", sa.Uuid(), sa.ForeignKey("webhooks.id", **cascade), nullable=False),
        sa.Column("event_id", sa.String(40), sa.ForeignKey("webhook_events.id", **cascade), nullable=False),
        sa.Column("subject", sa.Uuid()),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        _moment("lease_until"),
        _moment("created_at", now=True),
        _moment("finished_at"),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'exhausted', 'disabled')", name="state"),
    )
    pending, leased = sa.text(PENDING), sa.text("lease_until IS NOT NULL")
    op.create_index("uq_webhook_deliveries_event", table, ["event_id", "webhook_id"], unique=True)
    op.create_index("ix_webhook_deliveries_log", table, ["webhook_id", "created_at", "id"])
    op.create_index("ix_webhook_deliveries_due", table, ["webhook_id", "due_at", "seq"], postgresql_where=pending)
    op.create_index(
        "ix_webhook_deliveries_order", table, ["webhook_id", "subject", "seq"], postgresql_where=pending
    )
    op.create_index("ix_webhook_deliveries_lease", table, ["lease_until"], postgresql_where=leased)
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.Uuid(), sa.ForeignKey(f"{table}.id", **cascade), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        _moment("started_at", now=True),
        sa.Column("duration_ms", sa.Float()),
        sa.Column("status", sa.Integer()),
        sa.Column("error", sa.String(300)),
    )


def downgrade() -> None:
    for table in ("webhook_attempts", "webhook_deliveries", "webhook_events", "webhooks"):
        op.drop_table(table)
