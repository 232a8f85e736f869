"""Table of topology versions."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base, CreatedAt


class TopologyVersion(Base):
    """A topology and the time it held; ``valid_to`` is null for the current one."""

    __tablename__ = "topology_versions"
    __table_args__ = (
        Index(
            "uq_topology_versions_current",
            "replica_id",
            unique=True,
            postgresql_where=text("valid_to IS NULL"),
        ),
        # Which version held at a time.
        Index("ix_topology_versions_replica_id_valid_from", "replica_id", "valid_from", "version"),
    )

    replica_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("replicas.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    document: Mapped[dict[str, Any]]
    valid_from: Mapped[CreatedAt]
    valid_to: Mapped[dt.datetime | None]
