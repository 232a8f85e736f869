"""HTTP of analyses."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.analyses import Topology, UnreadableInput
from app.analyzing import service
from app.analyzing.schemas import AnalysisIn, AnalysisOut
from app.kit.auth import require
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.problems import FieldError, Problem, invalid, responses
from app.kit.transaction import TransactionalRoute
from app.replicas import service as replicas
from app.topology import service as topologies

router = APIRouter(prefix="/analyses", tags=["analyses"], route_class=TransactionalRoute)


@router.post(
    "",
    operation_id="analyze",
    dependencies=[Depends(require("read")), Idempotent],
    responses=responses(400, 404, 409, 413),
)
def analyze(wanted: AnalysisIn, db: Db) -> AnalysisOut:
    """Name the slow GPU, path or group in measurements made elsewhere, or say why nobody can be named.

    Nothing is stored (but an answer under an Idempotency-Key), and nothing is sent to a replica.
    """
    try:
        found = service.analyze(wanted.text, topology=_topology(wanted, db), kind=wanted.kind)
    except UnreadableInput as error:
        raise Problem(422, error.code, str(error), errors=[_where(error)]) from None
    return AnalysisOut.model_validate(found.to_dict())


def _where(error: UnreadableInput) -> FieldError:
    """The field at fault: all places but that of the format lie in the text."""
    if error.code == "unknown_kind":
        return FieldError(field="body.kind", message=error.detail)
    return FieldError(field="body.text", message=f"{error.place or 'the whole text'}: {error.detail}")


def _topology(wanted: AnalysisIn, db: Db) -> Topology | None:
    """Where the ranks sit, where the request or its replica says it."""
    if wanted.topology is not None:
        return Topology({gpu.rank: gpu for gpu in wanted.topology.gpus}, wanted.topology.parents)
    if wanted.replica_id is None:
        return None
    replica = replicas.get(db, wanted.replica_id)
    current = topologies.current(db, replica.id)
    if current is None:
        raise invalid("body.replica_id", f"replica {replica.name!r} has no topology; upload it, or give one here")
    placement = topologies.placement(current)
    return Topology(dict(enumerate(placement.places)), placement.parents)
