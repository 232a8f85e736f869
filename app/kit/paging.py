"""Opaque cursors: a page continues after the last item seen, whatever was added meanwhile."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar, TypeVarTuple

from fastapi import Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field
from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from app.kit.problems import Problem, invalid

T = TypeVar("T")
R = TypeVar("R")
Columns = TypeVarTuple("Columns")


def _iso(value: object) -> object:
    """Refuse numbers, which pydantic would read as seconds since 1970."""
    if isinstance(value, str) and not re.match(r"\d{4}-\d{2}-\d{2}[T ]", value):
        raise ValueError("write it as 2026-01-31T08:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_iso)]
Limit = Annotated[int, Query(ge=1, le=500, description="Items a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=200, description="`next_cursor` of the page before; leave out for the first page."),
]


class Page(BaseModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = Field(default=None, description="Cursor of the next page; null on the last one.")


def cut(found: Sequence[R], limit: int, cursor: Callable[[R], str]) -> tuple[Sequence[R], str | None]:
    """Split what a query for one row more than the limit found.

    Returns
    -------
    tuple of (sequence, str or None)
        The page's rows, and the cursor of the next page when there is one.
    """
    rows = found[:limit]
    return rows, cursor(rows[-1]) if len(found) > limit else None


def encode(created_at: dt.datetime, item_id: uuid.UUID) -> str:
    """Cursor that continues after an item of a newest-first list."""
    return _pack(f"{created_at.isoformat()}|{item_id}")


def decode(cursor: str) -> tuple[dt.datetime, uuid.UUID]:
    """The item that a cursor stands for.

    Raises
    ------
    Problem
        422 when it is none of ours.
    """
    created_at, _, item_id = _unpack(cursor).partition("|")
    try:
        moment = dt.datetime.fromisoformat(created_at)
        if moment.tzinfo is None:
            raise ValueError(created_at)
        return moment, uuid.UUID(item_id)
    except ValueError:
        raise _unknown() from None


def encode_number(number: int) -> str:
    """Cursor that continues after a numbered item."""
    return _pack(str(number))


def decode_number(cursor: str) -> int:
    """The number that a cursor stands for.

    Raises
    ------
    Problem
        422 when it is none of ours.
    """
    text = _unpack(cursor)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _unknown()
    return int(text)


def newest_first(
    query: Select[*Columns],
    created_at: InstrumentedAttribute[dt.datetime],
    item_id: InstrumentedAttribute[uuid.UUID],
    *,
    limit: int,
    cursor: str | None,
) -> Select[*Columns]:
    """A page of a query, and one row more when there is another page; strictly after the cursor's item.

    Raises
    ------
    Problem
        422 when the cursor is none of ours.
    """
    if cursor:
        query = query.where(tuple_(created_at, item_id) < tuple_(*decode(cursor)))
    return query.order_by(created_at.desc(), item_id.desc()).limit(limit + 1)


def _pack(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpack(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (ValueError, binascii.Error):
        raise _unknown() from None


def _unknown() -> Problem:
    return invalid("query.cursor", "is not a cursor of this service")
