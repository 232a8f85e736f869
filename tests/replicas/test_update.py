"""PATCH of a replica: a merge patch whose result is a whole replica, or nothing changes."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.kit import secrets
from tests.replicas.test_replicas import GOOD, MANIFEST


@pytest.fixture
def made(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.post("/replicas", json={**GOOD, "auth": {"bearer": "old-token"}}).json()
    return document


def patch(client: TestClient, made: dict[str, Any], **changes: Any) -> Any:
    return client.patch(f"/replicas/{made['id']}", json=changes)


def test_what_is_named_changes_and_nothing_else(client: TestClient, made: dict[str, Any]) -> None:
    changed = patch(client, made, name="moe-2", limits={"probes_per_second": 3})
    assert changed.status_code == 200, changed.text
    assert changed.json() == {**made, "name": "moe-2", "limits": {**made["limits"], "probes_per_second": 3.0}}
    assert client.get(f"/replicas/{made['id']}").json() == changed.json()


def test_null_goes_back_to_the_default(client: TestClient, made: dict[str, Any]) -> None:
    patch(client, made, limits={"tokens_per_second": 5000, "probes_per_second": 3}, targets={"delay_ms": 1})
    back = patch(client, made, limits={"tokens_per_second": None}, targets=None).json()
    assert back["limits"] == {"probes_per_second": 3.0, "tokens_per_second": None, "max_in_flight": 1}
    assert back["targets"] == made["targets"]


def test_nothing_changes_nothing(client: TestClient, made: dict[str, Any]) -> None:
    assert patch(client, made).json() == made


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 16}, "body.gpus"),
        ({"probe_endpoints": [{"url": "http://127.0.0.1:1", "ranks": "0-3"}]}, "body"),
        ({"probe_endpoints": []}, "body.probe_endpoints"),
        ({"probe_endpoints": None}, "body.probe_endpoints"),
        ({"probe_endpoints": [{"url": "http://8.8.8.8", "ranks": "0-7"}]}, "body.probe_endpoints.0.url"),
        ({"name": None}, "body.name"),
        ({"manifest": None}, "body.manifest"),
        ({"layout": {"tp": 2, "dp": 2}}, "body"),
        ({"limits": {"probes_per_second": -1}}, "body.limits.probes_per_second"),
        ({"unknown": 1}, "body.unknown"),
        ({"auth": {"bearer": "two words"}}, "body.auth.bearer"),
        ({"ca_pem": "not pem"}, "body.ca_pem"),
    ],
)
def test_a_broken_result_is_refused_whole(
    client: TestClient, made: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    refused = patch(client, made, **{"targets": {"delay_ms": 77}, **changes})
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["field"] == field
    assert client.get(f"/replicas/{made['id']}").json() == made


def test_a_manifest_of_another_size_is_refused(client: TestClient, made: dict[str, Any]) -> None:
    assert patch(client, made, manifest={**MANIFEST, "gpus": 4}).status_code == 422


def test_tokens_can_be_replaced_and_forgotten(client: TestClient, made: dict[str, Any], db: Session) -> None:
    def stored() -> bytes | None:
        db.rollback()
        token = db.execute(text("SELECT bearer FROM replicas")).scalar_one()
        return None if token is None else bytes(token)

    assert patch(client, made, auth={"bearer": "new-token"}).json()["has_bearer"] is True
    token = stored()
    assert token is not None
    assert secrets.decrypt(token) == "new-token"
    patch(client, made, name="other")
    assert stored() == token
    assert patch(client, made, auth={"bearer": None}).json()["has_bearer"] is False
    assert stored() is None


def test_a_name_in_use(client: TestClient, made: dict[str, Any]) -> None:
    client.post("/replicas", json={**GOOD, "name": "other"})
    taken = patch(client, made, name="other")
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")


def test_a_running_job_keeps_what_it_probes(client: TestClient, made: dict[str, Any]) -> None:
    job = client.post(f"/replicas/{made['id']}/localize").json()
    busy = patch(client, made, layout={"all2all": "mori_low_latency"})
    assert busy.status_code == 409
    assert busy.headers["Location"] == f"/jobs/{job['id']}"
    assert patch(client, made, limits={"probes_per_second": 1}, name="slower").status_code == 200


def test_who_may(client: TestClient, made: dict[str, Any], keys: dict[str, str]) -> None:
    client.headers["Authorization"] = f"Bearer {keys['read']}"
    assert patch(client, made, name="x").status_code == 403


def test_unknown(client: TestClient) -> None:
    assert client.patch(f"/replicas/{uuid.uuid4()}", json={"name": "x"}).status_code == 404


def test_lists_are_found_by_name(client: TestClient, made: dict[str, Any]) -> None:
    client.post("/replicas", json={**GOOD, "name": "other"})
    assert [r["id"] for r in client.get("/replicas", params={"name": "moe-1"}).json()["items"]] == [made["id"]]
    assert client.get("/replicas", params={"name": "none"}).json()["items"] == []


def test_reencrypting_lets_the_old_key_go(
    client: TestClient, made: dict[str, Any], db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.kit.db import Base
    from app.settings import get_settings

    old = get_settings().secret_keys[0].get_secret_value()
    new = secrets.generate_key()

    def use(*keys: str) -> None:
        monkeypatch.setenv("FAULTSENSE_SECRET_KEYS", json.dumps(keys))
        get_settings.cache_clear()

    use(new, old)
    assert secrets.reencrypt(db, Base.metadata) == 1
    db.commit()
    use(new)
    token = db.execute(text("SELECT bearer FROM replicas")).scalar_one()
    assert secrets.decrypt(bytes(token)) == "old-token"
    use(secrets.generate_key())
    with pytest.raises(secrets.SecretsError, match="in replicas"):
        secrets.reencrypt(db, Base.metadata)


def test_an_empty_auth_leaves_the_token(client: TestClient, made: dict[str, Any]) -> None:
    assert patch(client, made, auth={}).json()["has_bearer"] is True


def test_a_stored_token_goes_to_no_new_address(client: TestClient, made: dict[str, Any]) -> None:
    elsewhere = [{"url": "http://127.0.0.9:1", "ranks": "0-7"}]
    refused = patch(client, made, probe_endpoints=elsewhere)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "body.auth"
    assert client.get(f"/replicas/{made['id']}").json() == made
    same = [{"url": "http://127.0.0.1:8000", "ranks": "0-7"}]
    assert patch(client, made, probe_endpoints=same).status_code == 200
    assert patch(client, made, probe_endpoints=elsewhere, auth={"bearer": "theirs"}).status_code == 200


def test_a_name_with_control_characters_is_refused(client: TestClient) -> None:
    refused = client.get("/replicas", params={"name": "a\x00b"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "query.name"


def test_lists_leave_out_what_is_large(client: TestClient, made: dict[str, Any]) -> None:
    (item,) = client.get("/replicas").json()["items"]
    assert made.keys() - item.keys() == {"manifest", "ca_pem"}
    assert all(made[name] == value for name, value in item.items())
