"""Engine, sessions and the base of all tables."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy import DateTime, Engine, MetaData, create_engine, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from app.settings import get_settings


class Base(DeclarativeBase):
    """Declarative base with predictable constraint names, so that migrations can name what they drop."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012
        dict[str, Any]: JSONB,
        dt.datetime: DateTime(timezone=True),
    }


Id = Annotated[uuid.UUID, mapped_column(primary_key=True, default=uuid.uuid4)]
CreatedAt = Annotated[dt.datetime, mapped_column(server_default=func.now())]


# Connections a process may have.
POOL = 30


@lru_cache(maxsize=4)
def engine_for(url: str) -> Engine:
    """One engine a URL and process."""
    return create_engine(
        url,
        pool_size=10,
        max_overflow=POOL - 10,
        pool_pre_ping=True,
        pool_timeout=10,
        connect_args={"connect_timeout": 5, "application_name": "faultsense"},
    )


def get_engine() -> Engine:
    """The service's engine."""
    return engine_for(get_settings().database_url.get_secret_value())


def get_db(request: Request) -> Iterator[Session]:
    """A session for one request: that of its transaction (`app.kit.transaction`), or one to read with."""
    shared: Session | None = getattr(request.state, "db", None)
    if shared is not None:
        yield shared
        return
    with Session(get_engine(), expire_on_commit=False) as session:
        yield session


Db = Annotated[Session, Depends(get_db)]

__all__ = ["Base", "CreatedAt", "Db", "Id", "Mapped", "engine_for", "get_db", "get_engine"]
