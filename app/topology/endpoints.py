"""HTTP of topologies."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Depends, Response

from app.kit.auth import require
from app.kit.db import Db
from app.kit.problems import not_found, responses
from app.kit.transaction import TransactionalRoute
from app.replicas import service as replicas
from app.topology import service
from app.topology.models import TopologyVersion
from app.topology.schemas import TopologyIn, TopologyOut

router = APIRouter(prefix="/replicas/{replica_id}/topology", tags=["topology"], route_class=TransactionalRoute)


@router.put(
    "",
    operation_id="putTopology",
    dependencies=[Depends(require("operate"))],
    responses=responses(400, 404, 413),
)
def put(replica_id: uuid.UUID, wanted: TopologyIn, response: Response, db: Db) -> TopologyOut:
    """Set the topology. Makes a new version only when something changed; older versions stay with their jobs."""
    replica = replicas.get(db, replica_id, lock=True)
    topology, _ = service.replace(db, replica.id, replica.gpus, wanted)
    db.refresh(topology)
    response.headers["Location"] = f"/replicas/{replica_id}/topology"
    return _shown(topology)


@router.get("", operation_id="getTopology", dependencies=[Depends(require("read"))], responses=responses(404))
def get(replica_id: uuid.UUID, db: Db) -> TopologyOut:
    """The current topology."""
    replicas.get(db, replica_id)
    topology = service.current(db, replica_id)
    if topology is None:
        raise not_found("topology of replica", replica_id)
    return _shown(topology)


def _shown(topology: TopologyVersion) -> TopologyOut:
    return TopologyOut(
        replica_id=topology.replica_id,
        version=topology.version,
        valid_from=topology.valid_from,
        valid_to=topology.valid_to,
        **topology.document,
    )
