"""SQL of selection windows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.kit import paging
from app.selection_windows.models import SelectionWindow


def get(db: Session, replica_id: uuid.UUID, window_id: uuid.UUID) -> SelectionWindow | None:
    """One window of a replica."""
    return db.scalar(
        select(SelectionWindow).where(SelectionWindow.replica_id == replica_id, SelectionWindow.id == window_id)
    )


def page(db: Session, replica_id: uuid.UUID, *, limit: int, cursor: str | None) -> Sequence[SelectionWindow]:
    """A replica's windows, the newest first; one more than ``limit`` when there is another page."""
    query = select(SelectionWindow).where(SelectionWindow.replica_id == replica_id)
    columns = SelectionWindow.created_at, SelectionWindow.id
    return db.scalars(paging.newest_first(query, *columns, limit=limit, cursor=cursor)).all()
