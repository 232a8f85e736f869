"""Table of stops."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import String, func
from sqlalchemy.orm import Mapped, mapped_column

from app.kit.db import Base

FLEET = "fleet"


class ProbingStop(Base):
    """While a row exists, nothing in its scope (``fleet`` or a replica's id) is probed."""

    __tablename__ = "probing_stops"

    scope: Mapped[str] = mapped_column(String(40), primary_key=True)
    reason: Mapped[str] = mapped_column(String(500))
    stopped_by: Mapped[str] = mapped_column(String(100))
    stopped_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
