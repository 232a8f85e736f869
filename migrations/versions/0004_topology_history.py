"""Topology versions are found by the time they held."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAME = "ix_topology_versions_replica_id_valid_from"


def upgrade() -> None:
    op.create_index(NAME, "topology_versions", ["replica_id", "valid_from", "version"])


def downgrade() -> None:
    op.drop_index(NAME, "topology_versions")
