"""Who changed what, and who was refused: one entry a state-changing call, in the transaction of the change."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

from fastapi import Request, Response
from sqlalchemy import ARRAY, BigInteger, Identity, Index, SmallInteger, String, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.kit.auth import Caller, find_caller
from app.kit.db import Base, CreatedAt
from app.kit.logs import REQUEST_ID

MAX_FIELDS = 40


class AuditEntry(Base):
    """One call. Names of the body's fields are kept, their values are not."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_at", "at"),
        Index("ix_audit_entries_key_id_id", "key_id", "id"),
        Index("ix_audit_entries_action_id", "action", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[CreatedAt]
    key_id: Mapped[uuid.UUID | None]
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(60))
    target: Mapped[str] = mapped_column(String(500))
    status: Mapped[int] = mapped_column(SmallInteger)
    request_id: Mapped[str | None] = mapped_column(String(64))
    address: Mapped[str | None] = mapped_column(String(64))
    made: Mapped[str | None] = mapped_column(String(500))
    fields: Mapped[list[str]] = mapped_column(ARRAY(String(100)))


def record(db: Session, request: Request, action: str, response: Response) -> None:
    """Add the entry of a call that changed something to its transaction."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is not None:
        entry = _entry(request, caller, action, response.status_code)
        entry.made = response.headers.get("location")
        entry.fields = _field_names(getattr(request, "_body", b""))
        db.add(entry)


def record_refusal(db: Session, request: Request, action: str, status: int) -> None:
    """Undo a call and store its entry; calls without a valid key leave none.

    The body's field names are left out: nothing has checked that they are names.
    """
    db.rollback()
    caller: Caller | None = getattr(request.state, "caller", None) or find_caller(db, request)
    if caller is not None:
        db.add(_entry(request, caller, action, status))
    db.commit()


def _entry(request: Request, caller: Caller, action: str, status: int) -> AuditEntry:
    return AuditEntry(
        key_id=caller.key_id,
        actor=caller.name,
        action=action,
        target=request.url.path[:500].replace("\0", "?"),
        status=status,
        request_id=REQUEST_ID.get(),
        address=request.client.host if request.client else None,
        fields=[],
    )


def record_command(db: Session, action: str, target: str) -> None:
    """Add the entry of a command that works on the database itself."""
    db.add(AuditEntry(actor="command line", action=action, target=target, status=200, fields=[]))


def delete_old(db: Session, older_than: dt.timedelta, limit: int = 1000) -> int:
    """Delete a batch of old entries."""
    old = select(AuditEntry.id).where(AuditEntry.at < func.now() - older_than).order_by(AuditEntry.id).limit(limit)
    return len(db.scalars(delete(AuditEntry).where(AuditEntry.id.in_(old)).returning(AuditEntry.id)).all())


def _field_names(body: bytes) -> list[str]:
    """Names of a body that passed its model, so none that a caller made up."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        return []
    return sorted(document)[:MAX_FIELDS] if isinstance(document, dict) else []
