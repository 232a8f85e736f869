"""Rules of topology versions."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.kit.problems import invalid, not_found
from app.localization.placement import Placement
from app.topology import documents, repository
from app.topology.diff import Difference, diff
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
    document = _document(wanted)
    old = repository.current(db, replica_id)
    if old is not None and _without_null(old.document) == document:
        return old, False
    # Time of day under the lock, not of the transaction's start: versions must follow each other.
    now = repository.now(db, after=None if old is None else old.valid_from)
    if old is not None:
        old.valid_to = now
        db.flush()
    new = TopologyVersion(
        replica_id=replica_id,
        version=old.version + 1 if old else 1,
        document=document,
        valid_from=now,
        valid_to=None,
    )
    db.add(new)
    db.flush()
    return new, True


def find(
    db: Session, replica_id: uuid.UUID, *, at: dt.datetime | None = None, version: int | None = None
) -> TopologyVersion:
    """The version that holds now, that held at a time, or that has a number.

    Raises
    ------
    Problem
        404, or 422 when both are given.
    """
    if at is not None and version is not None:
        raise invalid("query.version", "give `at` or `version`, not both")
    if at is not None:
        found, which = repository.at(db, replica_id, at), f" at {at.isoformat()}"
    elif version is not None:
        found, which = repository.get(db, replica_id, version), f", version {version}"
    else:
        found, which = repository.current(db, replica_id), ""
    if found is None:
        raise not_found("topology of replica", f"{replica_id}{which}")
    return found


def compare(db: Session, replica_id: uuid.UUID, old: int, new: int) -> Difference:
    """What changed between two versions.

    Raises
    ------
    Problem
        404 naming the version that is not there.
    """
    before, after = (find(db, replica_id, version=number) for number in (old, new))
    return diff(placement(before), placement(after))


def placement(topology: TopologyVersion) -> Placement:
    """Where the ranks sit under a version."""
    return documents.placement(topology.document)


def _document(wanted: TopologyIn) -> dict[str, Any]:
    """What is stored: by rank, without what was not stated."""
    gpus = sorted(wanted.gpus, key=lambda place: place.rank)
    document: dict[str, Any] = {"gpus": [gpu.model_dump(exclude_none=True) for gpu in gpus]}
    if wanted.parents:
        document["parents"] = wanted.parents
    return document


def _without_null(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored document as `_document` writes it; older ones hold nulls."""
    gpus = [{name: value for name, value in gpu.items() if value is not None} for gpu in document["gpus"]]
    return {**document, "gpus": gpus}
