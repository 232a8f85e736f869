"""SQL of stops."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.probing_stops.models import FLEET, ProbingStop


def put(db: Session, scope: str, *, reason: str, by: str) -> ProbingStop:
    """Insert or replace the stop of a scope."""
    values = {"reason": reason, "stopped_by": by, "stopped_at": func.now()}
    statement = (
        insert(ProbingStop)
        .values(scope=scope, **values)
        .on_conflict_do_update(index_elements=[ProbingStop.scope], set_=values)
        .returning(ProbingStop)
    )
    return db.scalars(statement, execution_options={"populate_existing": True}).one()


def remove(db: Session, scope: str) -> None:
    """Delete the stop of a scope, if there is one."""
    db.execute(delete(ProbingStop).where(ProbingStop.scope == scope))


def first_of(db: Session, scopes: Sequence[str]) -> ProbingStop | None:
    """A stop in one of the scopes, the fleet's before a replica's."""
    held = select(ProbingStop).where(ProbingStop.scope.in_(scopes))
    return db.scalar(held.order_by((ProbingStop.scope == FLEET).desc()).limit(1))
