"""The stop switch: no new jobs, running ones end within one probe, and all say why."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs import runner
from app.jobs.runner import run_slice
from app.localization.replay import replay_lines
from app.probing import prober
from app.settings import Settings
from tests.conftest import QUICK, replica_document

WHY = {"stopped": True, "reason": "rack b is being drained"}


@pytest.fixture
def replica(client: TestClient, emulated: EmulatedReplica) -> str:
    emulated.set_faults([])
    return str(client.post("/replicas", json=replica_document(emulated)).json()["id"])


@pytest.fixture(params=["fleet", "replica"])
def switch(request: pytest.FixtureRequest, replica: str) -> str:
    return "/probing" if request.param == "fleet" else f"/replicas/{replica}/probing"


def start(client: TestClient, replica: str) -> Any:
    return client.post(f"/replicas/{replica}/localize", json=QUICK)


def test_new_jobs_are_refused_until_it_is_lifted(client: TestClient, replica: str, switch: str) -> None:
    assert client.get(switch).json()["stopped"] is False
    stopped = client.put(switch, json=WHY).json()
    assert (stopped["stopped"], stopped["stopped_by"], stopped["reason"]) == (True, "operate", WHY["reason"])
    refused = start(client, replica)
    assert refused.status_code == 409
    assert refused.json()["code"] == "probing_stopped"
    assert WHY["reason"] in refused.json()["detail"]
    assert f"PUT {switch} " in refused.json()["detail"]
    assert client.put(switch, json={"stopped": False}).json()["stopped"] is False
    assert start(client, replica).status_code == 202


def test_a_running_job_ends_within_one_probe(
    client: TestClient,
    replica: str,
    switch: str,
    engine: Engine,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third measurement is under way when the switch is thrown; none follows it."""
    job = start(client, replica).json()
    taken: list[int] = []
    measure = runner.Prober.measure

    async def measured(prober: Any, probe: Any) -> Any:
        taken.append(probe.number)
        event = await measure(prober, probe)
        if len(taken) == 3:
            assert client.put(switch, json=WHY).status_code == 200
        return event

    monkeypatch.setattr(runner.Prober, "measure", measured)
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    ended = client.get(f"/jobs/{job['id']}").json()
    assert len(taken) == 3
    assert (ended["state"], ended["verdict"]["outcome"]) == ("cancelled", "inconclusive")
    (why,) = ended["verdict"]["reasons"]
    assert why == {"code": "probing_stopped", "text": "probing was stopped by 'operate': rack b is being drained"}
    assert replay_lines(client.get(f"/jobs/{job['id']}/log").text.splitlines()).identical


def test_a_queued_job_sends_nothing(
    client: TestClient, replica: str, switch: str, emulated: EmulatedReplica, engine: Engine, settings: Settings
) -> None:
    job = start(client, replica).json()
    client.put(switch, json=WHY)
    before = emulated.stats()
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    ended = client.get(f"/jobs/{job['id']}").json()
    assert (ended["state"], ended["verdict"]) == ("cancelled", None)
    assert ended["error"]["code"] == "probing_stopped"
    assert emulated.stats()["requests"] == before["requests"]


def test_a_replica_is_stopped_alone(client: TestClient, replica: str, emulated: EmulatedReplica) -> None:
    other = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    client.put(f"/replicas/{replica}/probing", json=WHY)
    assert start(client, other).status_code == 202
    assert client.get(f"/replicas/{other}/probing").json()["stopped"] is False


def test_lifting_one_leaves_the_other(client: TestClient, replica: str) -> None:
    client.put("/probing", json=WHY)
    client.put(f"/replicas/{replica}/probing", json={"stopped": True, "reason": "mine"})
    assert client.get(f"/replicas/{replica}/probing").json()["scope"] == "fleet"
    client.put("/probing", json={"stopped": False})
    assert client.get(f"/replicas/{replica}/probing").json()["reason"] == "mine"
    assert start(client, replica).status_code == 409


def test_who_may(anonymous: TestClient, keys: dict[str, str]) -> None:
    anonymous.headers["Authorization"] = f"Bearer {keys['read']}"
    assert anonymous.put("/probing", json=WHY).status_code == 403
    assert anonymous.get("/probing").status_code == 200


@pytest.mark.parametrize("body", [{}, {"stopped": "yes"}, {"stopped": True, "reason": "two\nlines"}, {"x": 1}])
def test_bad_input(client: TestClient, body: dict[str, Any]) -> None:
    assert client.put("/probing", json=body).status_code == 422


def test_unknown_replica(client: TestClient) -> None:
    assert client.put(f"/replicas/{uuid.uuid4()}/probing", json=WHY).status_code == 404


def test_a_deleted_replica_leaves_no_stop(client: TestClient, replica: str, db: Session) -> None:
    client.put(f"/replicas/{replica}/probing", json=WHY)
    assert client.delete(f"/replicas/{replica}").status_code == 204
    assert db.execute(text("SELECT count(*) FROM probing_stops")).scalar() == 0


def test_a_stop_is_heard_in_the_middle_of_the_warm_up(
    client: TestClient,
    replica: str,
    emulated: EmulatedReplica,
    engine: Engine,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease's heartbeat hears of it, too; then nothing more is sent, not even to park ranks."""
    job = start(client, replica).json()
    park = prober.Prober._park_lanes
    parked: list[list[int]] = []

    async def throw_the_switch(self: Any, lanes: Any) -> Any:
        parked.append([lane.rank for lane in lanes])
        if len(parked) == 3:
            client.put(f"/replicas/{replica}/probing", json=WHY)
            slices[0]._renew()
        return await park(self, lanes)

    slices: list[Any] = []
    made = runner._Slice.__init__
    monkeypatch.setattr(
        runner._Slice, "__init__", lambda self, *a, **k: (slices.append(self), made(self, *a, **k))[1]
    )
    monkeypatch.setattr(prober.Prober, "_park_lanes", throw_the_switch)

    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    assert parked == [[0], [1], [2]]
    assert client.get(f"/jobs/{job['id']}").json()["state"] == "cancelled"


def test_the_switch_works_while_all_turns_are_taken(client: TestClient, replica: str) -> None:
    turns = client.app.state.turns  # type: ignore[attr-defined]
    value, turns._value = turns._value, 0
    try:
        assert client.put("/probing", json=WHY).status_code == 200
    finally:
        turns._value = value
