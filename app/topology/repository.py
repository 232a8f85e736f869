"""SQL of topology versions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.topology.models import TopologyVersion


def current(db: Session, replica_id: uuid.UUID) -> TopologyVersion | None:
    """The version that holds now."""
    return db.scalar(
        select(TopologyVersion).where(TopologyVersion.replica_id == replica_id, TopologyVersion.valid_to.is_(None))
    )


def get(db: Session, replica_id: uuid.UUID, version: int) -> TopologyVersion | None:
    """One version."""
    return db.get(TopologyVersion, (replica_id, version))


def current_versions(db: Session, replica_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Current version numbers by replica."""
    query = select(TopologyVersion.replica_id, TopologyVersion.version).where(
        TopologyVersion.replica_id.in_(replica_ids), TopologyVersion.valid_to.is_(None)
    )
    return {row.replica_id: row.version for row in db.execute(query)}
