"""SQL of topology versions."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.topology.models import TopologyVersion

TICK = dt.timedelta(microseconds=1)


def current(db: Session, replica_id: uuid.UUID) -> TopologyVersion | None:
    """The version that holds now."""
    return db.scalar(
        select(TopologyVersion).where(TopologyVersion.replica_id == replica_id, TopologyVersion.valid_to.is_(None))
    )


class Span(NamedTuple):
    """A version without its document, and the time it held."""

    version: int
    valid_from: dt.datetime
    valid_to: dt.datetime | None


def at(db: Session, replica_id: uuid.UUID, moment: dt.datetime) -> TopologyVersion | None:
    """The version that held at a time: versions follow each other without gaps, so the last one begun by then."""
    return db.scalar(
        select(TopologyVersion)
        .where(TopologyVersion.replica_id == replica_id, TopologyVersion.valid_from <= moment)
        .order_by(TopologyVersion.valid_from.desc(), TopologyVersion.version.desc())
        .limit(1)
    )


def page(db: Session, replica_id: uuid.UUID, *, limit: int, before: int | None) -> list[Span]:
    """Versions, the newest first; one more than the limit when there are."""
    query = (
        select(TopologyVersion.version, TopologyVersion.valid_from, TopologyVersion.valid_to)
        .where(TopologyVersion.replica_id == replica_id)
        .order_by(TopologyVersion.version.desc())
        .limit(limit + 1)
    )
    if before is not None:
        query = query.where(TopologyVersion.version < before)
    return [Span(*row) for row in db.execute(query)]


def now(db: Session, *, after: dt.datetime | None) -> dt.datetime:
    """The time on the database's clock, always later than another one: a clock that was set back makes no gap."""
    least = func.clock_timestamp() if after is None else func.greatest(func.clock_timestamp(), after + TICK)
    moment = db.scalar(select(least))
    assert isinstance(moment, dt.datetime)
    return moment


def get(db: Session, replica_id: uuid.UUID, version: int) -> TopologyVersion | None:
    """One version."""
    return db.get(TopologyVersion, (replica_id, version))


def current_versions(db: Session, replica_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Current version numbers by replica."""
    query = select(TopologyVersion.replica_id, TopologyVersion.version).where(
        TopologyVersion.replica_id.in_(replica_ids), TopologyVersion.valid_to.is_(None)
    )
    return {row.replica_id: row.version for row in db.execute(query)}
