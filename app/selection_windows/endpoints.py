"""HTTP of selection windows."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Depends, Response

from app.kit import paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import TransactionalRoute
from app.replicas import service as replicas
from app.selection_windows import repository, service
from app.selection_windows.models import SelectionWindow
from app.selection_windows.schemas import SelectionWindowIn, SelectionWindowOut
from app.selection_windows.suspects import LastVerdict, beside, last_verdict
from app.topology import service as topologies

router = APIRouter(
    prefix="/replicas/{replica_id}/selection-windows", tags=["selection"], route_class=TransactionalRoute
)
READ = [Depends(require("read"))]


@router.post(
    "",
    status_code=201,
    operation_id="createSelectionWindow",
    dependencies=[Depends(require("operate")), Idempotent],
    responses=responses(400, 404, 409, 413),
)
def create(replica_id: uuid.UUID, wanted: SelectionWindowIn, response: Response, db: Db) -> SelectionWindowOut:
    """Store selection records and judge them against port counters: pass, fail or inconclusive, rail by rail."""
    replicas.get(db, replica_id)
    topology = topologies.current(db, replica_id)
    window = service.create(db, replica_id, topology.version if topology else None, wanted)
    response.headers["Location"] = _url(window)
    return _shown(window, last_verdict(db, replica_id))


@router.get("", operation_id="listSelectionWindows", dependencies=READ, responses=responses(404))
def list_windows(
    replica_id: uuid.UUID, db: Db, limit: paging.Limit = 50, cursor: paging.Cursor = None
) -> Page[SelectionWindowOut]:
    """The replica's windows, the newest first."""
    replicas.get(db, replica_id)
    found = repository.page(db, replica_id, limit=limit, cursor=cursor)
    rows, following = paging.cut(found, limit, lambda window: paging.encode(window.created_at, window.id))
    verdict = last_verdict(db, replica_id)
    return Page[SelectionWindowOut](items=[_shown(window, verdict) for window in rows], next_cursor=following)


@router.get("/{window_id}", operation_id="getSelectionWindow", dependencies=READ, responses=responses(404))
def get(replica_id: uuid.UUID, window_id: uuid.UUID, db: Db) -> SelectionWindowOut:
    """One window and its judgement."""
    replicas.get(db, replica_id)
    return _shown(service.get(db, replica_id, window_id), last_verdict(db, replica_id))


@router.get(
    "/{window_id}/upload",
    operation_id="getSelectionWindowUpload",
    response_model=SelectionWindowIn,
    dependencies=READ,
    responses=responses(404),
)
def upload(replica_id: uuid.UUID, window_id: uuid.UUID, db: Db) -> Response:
    """What was uploaded, as it can be sent again."""
    replicas.get(db, replica_id)
    # As it is stored: escapes that a JSON parser takes, but no UTF-8 can hold, pass through.
    return Response(service.get(db, replica_id, window_id).upload, media_type="application/json")


def _url(window: SelectionWindow) -> str:
    return f"/replicas/{window.replica_id}/selection-windows/{window.id}"


def _shown(window: SelectionWindow, verdict: LastVerdict | None) -> SelectionWindowOut:
    url = _url(window)
    return SelectionWindowOut(
        id=window.id,
        replica_id=window.replica_id,
        created_at=window.created_at,
        topology_version=window.topology_version,
        records=window.records,
        suspects=beside(window, verdict),
        links={"self": url, "upload": f"{url}/upload", "replica": f"/replicas/{window.replica_id}"},
        **window.judgement,
    )
