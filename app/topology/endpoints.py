"""HTTP of topologies."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from app.kit import paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import TransactionalRoute
from app.replicas import service as replicas
from app.topology import repository, service
from app.topology.models import TopologyVersion
from app.topology.schemas import ChangeOut, DifferenceOut, TopologyIn, TopologyOut, TopologyVersionOut

router = APIRouter(prefix="/replicas/{replica_id}/topology", tags=["topology"], route_class=TransactionalRoute)
READ = [Depends(require("read"))]
VersionNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


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


@router.get("", operation_id="getTopology", dependencies=READ, responses=responses(404))
def get(
    replica_id: uuid.UUID,
    db: Db,
    at: Annotated[paging.Moment | None, Query(description="The version that held then; with a time zone.")] = None,
    version: Annotated[VersionNumber | None, Query(description="This version, as jobs name theirs.")] = None,
) -> TopologyOut:
    """The topology: the current one, or one of before."""
    replicas.get(db, replica_id)
    return _shown(service.find(db, replica_id, at=at, version=version))


@router.get("/versions", operation_id="listTopologyVersions", dependencies=READ, responses=responses(404))
def versions(
    replica_id: uuid.UUID, db: Db, limit: paging.Limit = 50, cursor: paging.Cursor = None
) -> Page[TopologyVersionOut]:
    """Versions and when they held, the newest first."""
    replicas.get(db, replica_id)
    before = None if cursor is None else paging.decode_number(cursor)
    found = repository.page(db, replica_id, limit=limit, before=before)
    rows, following = paging.cut(found, limit, lambda span: paging.encode_number(span.version))
    return Page[TopologyVersionOut](
        items=[TopologyVersionOut(**span._asdict()) for span in rows], next_cursor=following
    )


@router.get("/diff", operation_id="diffTopology", dependencies=READ, responses=responses(404))
def diff(
    replica_id: uuid.UUID,
    db: Db,
    old: Annotated[VersionNumber, Query(alias="from", description="The version to compare with.")],
    new: Annotated[VersionNumber, Query(alias="to", description="The version to compare.")],
) -> DifferenceOut:
    """What changed between two versions, in words. Renumbered ranks are told from GPUs that moved by device id."""
    replicas.get(db, replica_id)
    found = service.compare(db, replica_id, old, new)
    return DifferenceOut(
        from_version=old,
        to_version=new,
        changes=[ChangeOut(**dataclasses.asdict(change)) for change in found.changes],
        ranks=list(found.ranks),
        unchanged=list(found.unchanged),
    )


def _shown(topology: TopologyVersion) -> TopologyOut:
    return TopologyOut(
        replica_id=topology.replica_id,
        version=topology.version,
        valid_from=topology.valid_from,
        valid_to=topology.valid_to,
        **topology.document,
    )
