"""API keys over HTTP: scopes, rotation with grace, expiry, and how often an address may fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.kit import failures
from app.settings import Settings


@pytest.fixture
def admin(anonymous: TestClient, keys: dict[str, str]) -> TestClient:
    anonymous.headers["Authorization"] = f"Bearer {keys['admin']}"
    return anonymous


def opens(client: TestClient, key: str) -> int:
    return client.get("/replicas", headers={"Authorization": f"Bearer {key}"}).status_code


def make(admin: TestClient, **wanted: Any) -> dict[str, Any]:
    answer = admin.post("/keys", json={"name": "bot", "scope": "read", **wanted})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/keys/{made['id']}"
    return made


def test_a_key_has_its_scope(admin: TestClient) -> None:
    made = make(admin)
    as_reader = {"Authorization": f"Bearer {made['key']}"}
    assert admin.get("/replicas", headers=as_reader).status_code == 200
    refused = admin.put("/probing", json={"stopped": True}, headers=as_reader)
    assert refused.status_code == 403
    assert "operate is needed" in refused.json()["detail"]
    assert admin.get("/keys", headers=as_reader).status_code == 403


def test_a_text_is_shown_once(admin: TestClient, db: Session) -> None:
    made = make(admin)
    assert "key" not in admin.get(f"/keys/{made['id']}").json()
    assert made["key"] not in admin.get("/keys").text
    everything = db.execute(text("SELECT string_agg(k::text, '') FROM api_keys k")).scalar_one()
    assert made["key"] not in everything


def test_a_rotated_key_works_until_its_grace_is_over(admin: TestClient, db: Session) -> None:
    old = make(admin, scope="operate")
    new = admin.post(f"/keys/{old['id']}/rotate", json={"grace_hours": 2}).json()
    assert (new["name"], new["scope"], new["expires_at"]) == ("bot", "operate", None)
    assert opens(admin, old["key"]) == opens(admin, new["key"]) == 200
    db.execute(text("UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE expires_at IS NOT NULL"))
    db.commit()
    assert (opens(admin, old["key"]), opens(admin, new["key"])) == (401, 200)


def test_rotating_at_once_ends_the_old_key(admin: TestClient) -> None:
    old = make(admin)
    assert admin.post(f"/keys/{old['id']}/rotate", json={"grace_hours": 0}).status_code == 201
    assert opens(admin, old["key"]) == 401


def test_a_rotated_key_never_outlives_its_own_end(admin: TestClient) -> None:
    old = make(admin, days=1)
    new = admin.post(f"/keys/{old['id']}/rotate", json={"grace_hours": 2000}).json()
    assert admin.get(f"/keys/{old['id']}").json()["expires_at"] == old["expires_at"]
    assert new["expires_at"] > old["expires_at"]


def test_a_revoked_key_ends_at_once_and_has_no_successor(admin: TestClient) -> None:
    made = make(admin)
    assert admin.delete(f"/keys/{made['id']}").status_code == 204
    assert opens(admin, made["key"]) == 401
    assert admin.post(f"/keys/{made['id']}/rotate").json()["code"] == "key_ended"


def test_a_key_has_one_successor(admin: TestClient) -> None:
    """Rotating again would read the grace as the key's lifetime, and the next key would end with it."""
    old = make(admin)
    admin.post(f"/keys/{old['id']}/rotate")
    again = admin.post(f"/keys/{old['id']}/rotate")
    assert (again.status_code, again.json()["code"]) == (409, "key_ended")


class TestFailures:
    @pytest.fixture(autouse=True)
    def few(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(settings, "auth_failures_per_minute", 3)
        failures.forget()
        yield
        failures.forget()

    def test_an_address_that_keeps_failing_is_told_to_wait(self, anonymous: TestClient) -> None:
        assert [opens(anonymous, f"fs_{i}") for i in range(5)] == [401, 401, 401, 429, 429]
        refused = anonymous.get("/jobs")
        assert refused.json()["code"] == "too_many_failures"
        assert refused.headers["Retry-After"] == "60"

    def test_valid_keys_still_pass(self, admin: TestClient, keys: dict[str, str]) -> None:
        """Behind a proxy all clients have one address: a broken one must not lock out the others."""
        assert [opens(admin, f"fs_{i}") for i in range(5)][-1] == 429
        assert opens(admin, keys["read"]) == 200
