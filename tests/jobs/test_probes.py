"""The measurements of a job over HTTP: what was sent, whatever its shape."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs.models import JobEvent
from app.localization.events import failed, measured
from app.localization.probes import Probe
from app.localization.shapes import Bipartite, Clique, Exchange, Shape, Shift, read_shape
from tests.conftest import replica_document

SHAPES = [
    Clique((0, 1, 2), 2),
    Bipartite((0, 1), (2, 3)),
    Shift(((0, 1, 2), (3, 4, 5)), (1, 2), 3),
    Exchange((0, 1, 2), ((0, 1), (1, 2)), 4),
    Exchange((2,), width=4),
]


@pytest.fixture
def job(client: TestClient, emulated: EmulatedReplica) -> dict[str, Any]:
    registered = client.post("/replicas", json=replica_document(emulated)).json()
    accepted = client.post(registered["links"]["localize"], json={})
    found: dict[str, Any] = client.get(accepted.headers["Location"]).json()
    return found


def test_every_shape_is_told(client: TestClient, db: Session, job: dict[str, Any]) -> None:
    for seq, shape in enumerate(SHAPES):
        event = measured(Probe(seq + 1, shape, 1, "cover"), tbt_ms=5.0, ttft_ms=9.0, wall_ms=80.0)
        _store(db, job, seq, event.type, event.data)
    items = client.get(job["links"]["probes"]).json()["items"]
    assert [item["members"] for item in items] == [list(shape.members) for shape in SHAPES]
    assert [_shape(item) for item in items] == SHAPES
    assert [item["sequences"] for item in items] == [2, None, None, None, None]
    assert items[0]["shape"] is None


def test_a_refused_load_says_why(client: TestClient, db: Session, job: dict[str, Any]) -> None:
    event = failed(Probe(1, SHAPES[2], 1, "cover"), code="load_too_high", detail="6 sequences, 5 at once")
    _store(db, job, 0, event.type, event.data)
    (item,) = client.get(job["links"]["probes"]).json()["items"]
    assert (item["type"], item["code"], item["tbt_ms"]) == ("failed", "load_too_high", None)
    assert _shape(item) == SHAPES[2]


def _store(db: Session, job: dict[str, Any], seq: int, kind: str, data: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(data))
    db.add(JobEvent(job_id=uuid.UUID(job["id"]), seq=seq, type=kind, attempt=1, data=stored))
    db.commit()


def _shape(item: dict[str, Any]) -> Shape:
    return read_shape(item["shape"]) if item["shape"] else Clique(tuple(item["members"]), item["sequences"])
