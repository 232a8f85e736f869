"""SQL of replicas."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.kit import paging
from app.replicas.models import Replica


def get(db: Session, replica_id: uuid.UUID, *, lock: bool = False) -> Replica | None:
    """A replica that is not deleted."""
    query = select(Replica).where(Replica.id == replica_id, Replica.deleted_at.is_(None))
    return db.scalar(query.with_for_update() if lock else query)


def by_name(db: Session, name: str) -> Replica | None:
    """The live replica of a name."""
    return db.scalar(select(Replica).where(Replica.name == name, Replica.deleted_at.is_(None)))


def page(db: Session, *, limit: int, cursor: str | None, name: str | None = None) -> Sequence[Replica]:
    """Live replicas, the newest first; one more than ``limit`` when there is another page."""
    query = select(Replica).where(Replica.deleted_at.is_(None))
    if name is not None:
        query = query.where(Replica.name == name)
    return db.scalars(paging.newest_first(query, Replica.created_at, Replica.id, limit=limit, cursor=cursor)).all()
