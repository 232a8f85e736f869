"""SQL of topology versions."""

from __future__ import annotations

import uuid

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
