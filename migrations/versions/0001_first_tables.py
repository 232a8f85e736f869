"""Keys, replicas, topology versions, jobs, events and verdicts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIVE = "state IN ('queued', 'running')"


def _moment(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not now, server_default=default)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("scopes", sa.ARRAY(sa.String(20)), nullable=False),
        _moment("created_at", now=True),
        _moment("revoked_at"),
    )
    op.create_table(
        "replicas",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("document", JSONB(), nullable=False),
        sa.Column("bearer", sa.LargeBinary()),
        _moment("created_at", now=True),
        _moment("deleted_at"),
    )
    op.create_index(
        "uq_replicas_name_live", "replicas", ["name"], unique=True, postgresql_where=sa.text("deleted_at IS NULL")
    )
    op.create_index("ix_replicas_created_at_id", "replicas", ["created_at", "id"])
    op.create_table(
        "topology_versions",
        sa.Column("replica_id", sa.Uuid(), sa.ForeignKey("replicas.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True),
        sa.Column("document", JSONB(), nullable=False),
        _moment("valid_from", now=True),
        _moment("valid_to"),
    )
    op.create_index(
        "uq_topology_versions_current",
        "topology_versions",
        ["replica_id"],
        unique=True,
        postgresql_where=sa.text("valid_to IS NULL"),
    )
    _create_jobs()


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("replica_id", sa.Uuid(), sa.ForeignKey("replicas.id"), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("phase", sa.SmallInteger()),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("planned", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        _moment("lease_until"),
        _moment("hinted_at"),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("request", JSONB(), nullable=False),
        sa.Column("settings", JSONB(), nullable=False),
        sa.Column("topology_version", sa.Integer()),
        _moment("created_at", now=True),
        _moment("started_at"),
        _moment("finished_at"),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("error", JSONB()),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired')", name="state"
        ),
    )
    op.create_index("uq_jobs_live", "jobs", ["replica_id"], unique=True, postgresql_where=sa.text(LIVE))
    op.create_index("ix_jobs_live_lease", "jobs", ["lease_until"], postgresql_where=sa.text(LIVE))
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_replica_id_created_at_id", "jobs", ["replica_id", "created_at", "id"])
    op.create_table(
        "events",
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True),
        sa.Column("type", sa.String(20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("data", JSONB(), nullable=False),
        _moment("created_at", now=True),
    )
    op.create_table(
        "verdicts",
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("baseline_ms", sa.Float()),
        sa.Column("document", JSONB(), nullable=False),
        _moment("created_at", now=True),
    )
    op.create_index("ix_verdicts_outcome_created_at", "verdicts", ["outcome", "created_at"])


def downgrade() -> None:
    for table in ("verdicts", "events", "jobs", "topology_versions", "replicas", "api_keys"):
        op.drop_table(table)
