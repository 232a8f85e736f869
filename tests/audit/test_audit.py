"""Every state-changing call leaves an entry, with the change or not at all; values never do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.kit import audit
from tests.conftest import replica_document


def entries(client: TestClient, keys: dict[str, str], **wanted: Any) -> list[dict[str, Any]]:
    page = client.get("/audit", params=wanted, headers={"Authorization": f"Bearer {keys['admin']}"})
    assert page.status_code == 200, page.text
    found: list[dict[str, Any]] = page.json()["items"]
    return found


def test_a_change_is_told(client: TestClient, keys: dict[str, str], emulated: EmulatedReplica) -> None:
    body = replica_document(emulated, auth={"bearer": "very-secret"})
    made = client.post("/replicas", json=body, headers={"X-Request-ID": "call-1"}).json()
    client.patch(f"/replicas/{made['id']}", json={"limits": {"probes_per_second": 5}})
    newest, first = entries(client, keys)
    assert first["action"] == "registerReplica"
    assert (first["actor"], first["status"], first["request_id"]) == ("operate", 201, "call-1")
    assert first["fields"] == sorted(body)
    assert (newest["action"], newest["target"], newest["fields"]) == (
        "updateReplica", f"/replicas/{made['id']}", ["limits"]
    )  # fmt: skip
    assert newest["id"] > first["id"]


def test_values_are_not_kept(client: TestClient, emulated: EmulatedReplica, db: Session) -> None:
    client.post("/replicas", json=replica_document(emulated, auth={"bearer": "very-secret"}))
    stored = db.execute(text("SELECT string_agg(a::text, '') FROM audit_entries a")).scalar_one()
    assert "very-secret" not in stored


def test_reading_is_not_a_change(client: TestClient, keys: dict[str, str]) -> None:
    client.get("/replicas")
    assert entries(client, keys) == []


@pytest.mark.parametrize("scope", ["read", "operate"])
def test_refusals_are_told(anonymous: TestClient, keys: dict[str, str], scope: str) -> None:
    reader = {"Authorization": f"Bearer {keys[scope]}"}
    anonymous.post("/keys", json={"name": "mine", "scope": "admin"}, headers=reader)
    (told,) = entries(anonymous, keys)
    assert (told["action"], told["actor"], told["status"]) == ("createKey", scope, 403)


def test_without_a_key_nothing_is_stored(anonymous: TestClient, keys: dict[str, str]) -> None:
    anonymous.put("/probing", json={"stopped": True})
    assert entries(anonymous, keys) == []


def test_filters_and_pages(client: TestClient, keys: dict[str, str]) -> None:
    for reason in "abc":
        client.put("/probing", json={"stopped": True, "reason": reason})
    client.put("/probing", json={"stopped": False})
    assert len(entries(client, keys, action="setProbing")) == 4
    assert entries(client, keys, action="localize") == []
    assert entries(client, keys, until="2020-01-01T00:00:00Z") == []
    admin = {"Authorization": f"Bearer {keys['admin']}"}
    first = client.get("/audit", params={"limit": 3}, headers=admin).json()
    rest = client.get("/audit", params={"cursor": first["next_cursor"]}, headers=admin).json()
    ids = [item["id"] for item in first["items"] + rest["items"]]
    assert len(ids) == 4
    assert ids == sorted(ids, reverse=True)
    assert rest["next_cursor"] is None


def test_what_validation_refuses_is_told_without_its_names(client: TestClient, keys: dict[str, str]) -> None:
    client.put("/probing", json={"sk-a-secret-as-a-name": 1})
    client.put("/probing", content=b"{broken", headers={"Content-Type": "application/json"})
    told = entries(client, keys, action="setProbing")
    assert [(entry["status"], entry["fields"]) for entry in told] == [(422, []), (422, [])]


@pytest.mark.parametrize("body", [b'{"a\\u0000b": 1}', b'{"\\ud800": 1}'])
def test_hostile_names_are_a_plain_refusal(anonymous: TestClient, keys: dict[str, str], body: bytes) -> None:
    reader = {"Authorization": f"Bearer {keys['read']}", "Content-Type": "application/json"}
    assert anonymous.post("/keys", content=body, headers=reader).status_code == 403
    assert entries(anonymous, keys)[0]["status"] == 403


def test_what_was_made_is_named(client: TestClient, keys: dict[str, str]) -> None:
    admin = {"Authorization": f"Bearer {keys['admin']}"}
    made = client.post("/keys", json={"name": "bot", "scope": "read"}, headers=admin).json()
    assert entries(client, keys, action="createKey")[0]["made"] == f"/keys/{made['id']}"


def test_old_entries_are_deleted_in_batches(client: TestClient, db: Session) -> None:
    for _ in range(3):
        client.put("/probing", json={"stopped": False})
    db.execute(text("UPDATE audit_entries SET at = now() - interval '10 days' WHERE id <= 2"))
    assert audit.delete_old(db, dt.timedelta(days=9), limit=1) == 1
    assert audit.delete_old(db, dt.timedelta(days=9)) == 1
    assert audit.delete_old(db, dt.timedelta(days=9)) == 0
