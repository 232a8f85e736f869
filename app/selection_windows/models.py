"""Table of selection windows."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base, CreatedAt, Id


class SelectionWindow(Base):
    """An upload and what was made of it.

    ``upload`` is the request as ASCII JSON: PostgreSQL's own JSON cannot hold all that a text from outside may.
    """

    __tablename__ = "selection_windows"
    __table_args__ = (Index("ix_selection_windows_replica_id_created_at_id", "replica_id", "created_at", "id"),)

    id: Mapped[Id]
    replica_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("replicas.id", ondelete="CASCADE"))
    topology_version: Mapped[int | None]
    records: Mapped[int]
    upload: Mapped[str] = mapped_column(Text, deferred=True)
    judgement: Mapped[dict[str, Any]]
    created_at: Mapped[CreatedAt]
