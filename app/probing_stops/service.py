"""Rules of stops: a stop is heard by workers within one probe, and refuses new jobs until it is lifted."""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from app.kit.problems import Problem
from app.probing_stops import repository
from app.probing_stops.models import FLEET, ProbingStop


def of(db: Session, replica_id: uuid.UUID | None) -> ProbingStop | None:
    """The stop that holds for a replica (the fleet's first), or for the fleet when no replica is given."""
    return repository.first_of(db, [FLEET, *([] if replica_id is None else [str(replica_id)])])


def refuse_if_stopped(db: Session, replica_id: uuid.UUID) -> None:
    """Refuse new jobs while probing is stopped.

    Raises
    ------
    Problem
        409 naming who stopped it, and why.
    """
    held = of(db, replica_id)
    if held is None:
        return
    which, path = (
        ("of the whole fleet", "/probing")
        if held.scope == FLEET
        else ("of this replica", f"/replicas/{replica_id}/probing")
    )
    raise Problem(
        409,
        "probing_stopped",
        f"probing {which} was stopped at {held.stopped_at:%Y-%m-%d %H:%M} UTC by {held.stopped_by!r}:"
        f" {held.reason}. PUT {path} with stopped=false lifts it",
    )
