"""HTTP of replicas."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.orm import Session

from app.jobs import service as jobs
from app.kit import headers, paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import TransactionalRoute
from app.probing_stops import repository as probing_stops
from app.replicas import repository, service
from app.replicas.models import Replica
from app.replicas.schemas import Name, ReplicaIn, ReplicaItem, ReplicaOut, ReplicaPatch
from app.topology import service as topology

router = APIRouter(prefix="/replicas", tags=["replicas"], route_class=TransactionalRoute)


@router.post(
    "",
    status_code=201,
    operation_id="registerReplica",
    dependencies=[Depends(require("operate")), Idempotent],
    responses={201: {"headers": headers.LOCATION}, **responses(400, 409, 413)},
)
def register(wanted: ReplicaIn, response: Response, db: Db) -> ReplicaOut:
    """Register a replica: its probe endpoints, the manifest of its probe model, and its limits."""
    replica = service.register(db, wanted)
    response.headers["Location"] = f"/replicas/{replica.id}"
    return _shown(db, replica)


@router.get("", operation_id="listReplicas", dependencies=[Depends(require("read"))], responses=responses())
def list_replicas(
    db: Db,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
    name: Annotated[Name | None, Query(description="Its name.")] = None,
) -> Page[ReplicaItem]:
    """Replicas, the newest first, without their manifests and CA bundles."""
    found = repository.page(db, limit=limit, cursor=cursor, name=name)
    rows, following = paging.cut(found, limit, lambda replica: paging.encode(replica.created_at, replica.id))
    versions = topology.current_versions(db, [replica.id for replica in rows])
    items = [ReplicaItem(**_fields(replica, versions.get(replica.id))) for replica in rows]
    return Page[ReplicaItem](items=items, next_cursor=following)


@router.get(
    "/{replica_id}",
    operation_id="getReplica",
    dependencies=[Depends(require("read"))],
    responses=responses(404),
)
def get(replica_id: uuid.UUID, db: Db) -> ReplicaOut:
    """One replica."""
    return _shown(db, service.get(db, replica_id))


@router.patch(
    "/{replica_id}",
    operation_id="updateReplica",
    dependencies=[Depends(require("operate"))],
    responses=responses(400, 404, 409, 413),
)
def update(replica_id: uuid.UUID, wanted: ReplicaPatch, db: Db) -> ReplicaOut:
    """Change what is named, as a JSON merge patch (RFC 7396): `null` takes a value back to its default.

    The result must be a whole, consistent replica. While a job runs, only `name`, `limits`, `targets` and
    `production_endpoints` can change; new limits hold from the job's next minute on.
    """
    replica = service.get(db, replica_id, lock=True)
    if service.concerns_probes(wanted):
        jobs.refuse_if_busy(db, replica)
    service.update(db, replica, wanted)
    return _shown(db, replica)


@router.delete(
    "/{replica_id}",
    status_code=204,
    operation_id="deleteReplica",
    dependencies=[Depends(require("operate"))],
    responses=responses(404, 409),
)
def delete(replica_id: uuid.UUID, db: Db) -> None:
    """Take a replica out of use. Its jobs stay readable. Refused while a job runs."""
    replica = service.get(db, replica_id, lock=True)
    jobs.refuse_if_busy(db, replica)
    probing_stops.remove(db, str(replica.id))
    service.delete(db, replica)


def _shown(db: Session, replica: Replica) -> ReplicaOut:
    return ReplicaOut(**_fields(replica, topology.current_versions(db, [replica.id]).get(replica.id)))


def _fields(replica: Replica, topology_version: int | None) -> dict[str, Any]:
    return {
        **replica.document,
        "id": replica.id,
        "name": replica.name,
        "gpus": replica.gpus,
        "has_bearer": replica.bearer is not None,
        "topology_version": topology_version,
        "created_at": replica.created_at,
        "links": {
            "self": f"/replicas/{replica.id}",
            "topology": f"/replicas/{replica.id}/topology",
            "localize": f"/replicas/{replica.id}/localize",
            "probing": f"/replicas/{replica.id}/probing",
            "jobs": f"/jobs?replica_id={replica.id}",
        },
    }
