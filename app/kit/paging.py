"""Opaque cursors: a page continues after the last item seen, whatever was added meanwhile."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import uuid
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from app.kit.problems import invalid

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=500, description="Items a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=200, description="`next_cursor` of the page before; leave out for the first page."),
]


class Page(BaseModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = Field(default=None, description="Cursor of the next page; null on the last one.")


def encode(created_at: dt.datetime, item_id: uuid.UUID) -> str:
    """Cursor that continues after an item."""
    return base64.urlsafe_b64encode(f"{created_at.isoformat()}|{item_id}".encode()).decode()


def decode(cursor: str) -> tuple[dt.datetime, uuid.UUID]:
    """The item that a cursor stands for.

    Raises
    ------
    Problem
        422 when it is none of ours.
    """
    try:
        text = base64.urlsafe_b64decode(cursor.encode()).decode()
        created_at, _, item_id = text.partition("|")
        moment = dt.datetime.fromisoformat(created_at)
        if moment.tzinfo is None:
            raise ValueError(created_at)
        return moment, uuid.UUID(item_id)
    except (ValueError, binascii.Error):
        raise invalid("query.cursor", "is not a cursor of this service") from None


def before(
    cursor: str, created_at: InstrumentedAttribute[dt.datetime], item_id: InstrumentedAttribute[uuid.UUID]
) -> ColumnElement[bool]:
    """Condition for newest-first lists: strictly after the cursor's item."""
    moment, seen = decode(cursor)
    return tuple_(created_at, item_id) < tuple_(moment, seen)
