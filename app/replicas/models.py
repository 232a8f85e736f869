"""Table of replicas."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base, CreatedAt, Id
from app.kit.secrets import ENCRYPTED


class Replica(Base):
    """One serving deployment; ``document`` holds no secret. A deleted replica keeps its jobs."""

    __tablename__ = "replicas"
    __table_args__ = (
        Index("uq_replicas_name_live", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index("ix_replicas_created_at_id", "created_at", "id"),
    )

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100))
    gpus: Mapped[int]
    document: Mapped[dict[str, Any]]
    bearer: Mapped[bytes | None] = mapped_column(LargeBinary, info=ENCRYPTED)
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[dt.datetime | None]
