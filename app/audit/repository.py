"""SQL of the audit log."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.kit import paging
from app.kit.audit import AuditEntry


def page(
    db: Session,
    *,
    limit: int,
    cursor: str | None,
    action: str | None,
    key_id: uuid.UUID | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
) -> Sequence[AuditEntry]:
    """Entries, the newest first; one more than ``limit`` when there is another page."""
    query = select(AuditEntry)
    if cursor:
        query = query.where(AuditEntry.id < paging.decode_number(cursor))
    if action is not None:
        query = query.where(AuditEntry.action == action)
    if key_id is not None:
        query = query.where(AuditEntry.key_id == key_id)
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    if until is not None:
        query = query.where(AuditEntry.at < until)
    return db.scalars(query.order_by(AuditEntry.id.desc()).limit(limit + 1)).all()
