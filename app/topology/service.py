"""Rules of topology versions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.kit.problems import invalid
from app.topology import repository
from app.topology.models import TopologyVersion
from app.topology.schemas import TopologyIn


def current(db: Session, replica_id: uuid.UUID) -> TopologyVersion | None:
    """The version that holds now, or None."""
    return repository.current(db, replica_id)


def current_versions(db: Session, replica_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Numbers of the versions that hold now, of those replicas that have one."""
    return repository.current_versions(db, replica_ids)


def replace(db: Session, replica_id: uuid.UUID, gpus: int, wanted: TopologyIn) -> tuple[TopologyVersion, bool]:
    """Make a new version when something changed. The caller holds the replica's row lock.

    Returns
    -------
    tuple of (TopologyVersion, bool)
        The current version, and whether it is new.

    Raises
    ------
    Problem
        422 when the number of GPUs is another.
    """
    if len(wanted.gpus) != gpus:
        raise invalid("body.gpus", f"{len(wanted.gpus)} GPUs given, the replica has {gpus}")
    document = {
        "gpus": [g.model_dump() for g in sorted(wanted.gpus, key=lambda place: place.rank)],
    }
    old = repository.current(db, replica_id)
    if old is not None and old.document == document:
        return old, False
    if old is not None:
        old.valid_to = func.now()
        db.flush()
    new = TopologyVersion(
        replica_id=replica_id, version=old.version + 1 if old else 1, document=document, valid_to=None
    )
    db.add(new)
    db.flush()
    return new, True


def host_indices(topology: TopologyVersion) -> tuple[int, ...]:
    """Host of each rank as a small number, in order of first appearance; shape (n,)."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(g["host"], len(numbers)) for g in topology.document["gpus"])
