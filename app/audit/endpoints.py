"""HTTP of the audit log."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from app.audit import repository
from app.kit import paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import TransactionalRoute

router = APIRouter(prefix="/audit", tags=["audit"], route_class=TransactionalRoute)


class AuditOut(BaseModel):
    """One state-changing call."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    at: dt.datetime
    key_id: uuid.UUID | None = Field(description="The API key; null for commands on the database itself.")
    actor: str = Field(description="The key's name.")
    action: str = Field(description="Operation id, for example `localize`.")
    target: str = Field(description="Path of the call.")
    status: int = Field(description="What it was answered; 400 and above changed nothing.")
    made: str | None = Field(description="Path of what it made.")
    request_id: str | None
    address: str | None = Field(description="Where it came from.")
    fields: list[str] = Field(description="Names of its body's fields, never values; none if refused.")


@router.get("", operation_id="listAudit", dependencies=[Depends(require("admin"))], responses=responses())
def list_audit(
    db: Db,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = None,
    action: Annotated[str | None, Query(max_length=60, pattern="^[A-Za-z.-]+$")] = None,
    key_id: uuid.UUID | None = None,
    since: Annotated[paging.Moment | None, Query(description="With a time zone.")] = None,
    until: Annotated[paging.Moment | None, Query(description="With a time zone; exclusive.")] = None,
) -> Page[AuditOut]:
    """State-changing calls, the newest first: who, when, from where, what, and how it was answered."""
    found = repository.page(db, limit=limit, cursor=cursor, action=action, key_id=key_id, since=since, until=until)
    rows, following = paging.cut(found, limit, lambda entry: paging.encode_number(entry.id))
    return Page[AuditOut](items=[AuditOut.model_validate(entry) for entry in rows], next_cursor=following)
