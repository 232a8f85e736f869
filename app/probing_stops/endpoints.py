"""HTTP of the stop switch."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.kit.auth import ApiKey, require
from app.kit.db import Db
from app.kit.problems import responses
from app.kit.transaction import UrgentRoute
from app.probing_stops import repository, service
from app.probing_stops.models import FLEET, ProbingStop
from app.replicas import service as replicas

router = APIRouter(tags=["probing"], route_class=UrgentRoute)
READ = [Depends(require("read"))]
Operator = Annotated[ApiKey, Depends(require("operate"))]


def _plain(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable, in one line")
    return value


class ProbingIn(BaseModel):
    """The switch."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"stopped": True, "reason": "INC-4711: rack b is being drained"}]},
    )

    stopped: bool
    reason: Annotated[
        str, Field(max_length=500, description="For whoever finds probing stopped."), AfterValidator(_plain)
    ] = "no reason given"


class ProbingOut(BaseModel):
    """Whether probing is stopped, and by whom."""

    stopped: bool
    scope: str | None = Field(description="`fleet`, or the replica's id, whichever holds; null: not stopped.")
    reason: str | None
    stopped_by: str | None = Field(description="Name of the API key.")
    stopped_at: dt.datetime | None


@router.get("/probing", operation_id="getProbing", dependencies=READ, responses=responses())
def get_fleet(db: Db) -> ProbingOut:
    """Whether probing is stopped for the whole fleet."""
    return _shown(service.of(db, None))


@router.put("/probing", operation_id="setProbing", responses=responses(400, 413))
def set_fleet(wanted: ProbingIn, key: Operator, db: Db) -> ProbingOut:
    """Stop all probing, or allow it again.

    Running jobs end within one probe as `cancelled`, with an inconclusive verdict that says why; new ones are
    refused with 409.
    """
    return _shown(_set(db, FLEET, wanted, key))


@router.get(
    "/replicas/{replica_id}/probing",
    operation_id="getReplicaProbing",
    dependencies=READ,
    responses=responses(404),
)
def get_replica(replica_id: uuid.UUID, db: Db) -> ProbingOut:
    """Whether probing of a replica is stopped, by its own switch or the fleet's."""
    return _shown(service.of(db, replicas.get(db, replica_id).id))


@router.put("/replicas/{replica_id}/probing", operation_id="setReplicaProbing", responses=responses(400, 404, 413))
def set_replica(replica_id: uuid.UUID, wanted: ProbingIn, key: Operator, db: Db) -> ProbingOut:
    """Stop probing a replica, or allow it again; as for the fleet."""
    _set(db, str(replicas.get(db, replica_id).id), wanted, key)
    return _shown(service.of(db, replica_id))


def _set(db: Db, scope: str, wanted: ProbingIn, key: ApiKey) -> ProbingStop | None:
    if wanted.stopped:
        return repository.put(db, scope, reason=wanted.reason, by=key.name)
    repository.remove(db, scope)
    return None


def _shown(stop: ProbingStop | None) -> ProbingOut:
    if stop is None:
        return ProbingOut(stopped=False, scope=None, reason=None, stopped_by=None, stopped_at=None)
    return ProbingOut(
        stopped=True, scope=stop.scope, reason=stop.reason, stopped_by=stop.stopped_by, stopped_at=stop.stopped_at
    )
