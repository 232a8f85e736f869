"""What a service needs around jobs: idempotency, audit, stop switches, counters, expiring keys, retention."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _now(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())


def upgrade() -> None:
    for name in ("expires_at", "rotated_at"):
        op.add_column("api_keys", sa.Column(name, sa.DateTime(timezone=True)))
    op.add_column("jobs", sa.Column("events_deleted_at", sa.DateTime(timezone=True)))
    # Jobs whose events are still there, by age: what the retention looks through.
    op.create_index(
        "ix_jobs_finished_at_kept", "jobs", ["finished_at"], postgresql_where=sa.text("events_deleted_at IS NULL")
    )
    op.create_table(
        "idempotency_records",
        sa.Column("owner", sa.Uuid(), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", JSONB(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        _now("created_at"),
    )
    op.create_index("ix_idempotency_records_created_at", "idempotency_records", ["created_at"])
    op.create_table(
        "probing_stops",
        sa.Column("scope", sa.String(40), primary_key=True),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("stopped_by", sa.String(100), nullable=False),
        _now("stopped_at"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("labels", JSONB(), primary_key=True),
        sa.Column("value", sa.Double(), nullable=False),
    )
    _create_audit()


def _create_audit() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        _now("at"),
        sa.Column("key_id", sa.Uuid()),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("target", sa.String(500), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("address", sa.String(64)),
        sa.Column("made", sa.String(500)),
        sa.Column("fields", sa.ARRAY(sa.String(100)), nullable=False),
    )
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"])
    op.create_index("ix_audit_entries_key_id_id", "audit_entries", ["key_id", "id"])
    op.create_index("ix_audit_entries_action_id", "audit_entries", ["action", "id"])


def downgrade() -> None:
    for table in ("audit_entries", "counters", "probing_stops", "idempotency_records"):
        op.drop_table(table)
    op.drop_index("ix_jobs_finished_at_kept", "jobs")
    op.drop_column("jobs", "events_deleted_at")
    # The version before knows only revoked keys: one that expires must not come back to life.
    op.execute("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE expires_at IS NOT NULL")
    for name in ("expires_at", "rotated_at"):
        op.drop_column("api_keys", name)
