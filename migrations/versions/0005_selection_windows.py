"""Selection windows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "selection_windows",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("replica_id", sa.Uuid(), sa.ForeignKey("replicas.id", ondelete="CASCADE"), nullable=False),
        sa.Column("topology_version", sa.Integer()),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("upload", sa.Text(), nullable=False),
        sa.Column("judgement", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )
    op.create_index(
        "ix_selection_windows_replica_id_created_at_id", "selection_windows", ["replica_id", "created_at", "id"]
    )


def downgrade() -> None:
    op.drop_table("selection_windows")
