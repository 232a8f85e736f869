"""The API of webhooks: registering, changing, rotating, testing, the log, replays."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from app.settings import Settings, get_settings
from app.webhooks.signing import key_of, new_secret
from tests.webhooks.conftest import Hook
from tests.webhooks.support import Deliver, Log, Publish, Register

URL = "https://hooks.example.com/faultsense"


def secret_of(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(range(size))).decode()


def test_an_endpoint_from_its_making_to_its_end(admin: TestClient) -> None:
    made = admin.post("/webhooks", json={"url": URL, "description": "pager"})
    assert made.status_code == 201
    document = made.json()
    assert made.headers["Location"] == document["links"]["self"] == f"/webhooks/{document['id']}"
    assert len(key_of(document.pop("secret"))) == 32
    assert document["events"] == ["job.completed", "job.failed"]
    assert (document["enabled"], document["signed"], document["job_id"]) == (True, True, None)
    assert admin.get(document["links"]["self"]).json() == document
    assert admin.get("/webhooks").json()["items"] == [document]
    changed = admin.patch(document["links"]["self"], json={"events": ["job.failed"], "enabled": False}).json()
    assert (changed["events"], changed["enabled"]) == (["job.failed"], False)
    assert changed["disabled_reason"] == "disabled by an operator"
    assert changed["disabled_at"] is not None
    assert (changed["url"], changed["description"]) == (URL, "pager")
    assert admin.delete(document["links"]["self"]).status_code == 204
    for method in ("GET", "PATCH", "DELETE"):
        gone = admin.request(method, document["links"]["self"], json={} if method == "PATCH" else None)
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


def test_a_slash_at_the_end_of_a_url_stays(admin: TestClient) -> None:
    made = admin.post("/webhooks", json={"url": "HTTPS://Hooks.Example.com:443/in/"})
    assert made.json()["url"] == "https://hooks.example.com/in/"


def test_who_may_do_what(admin: TestClient, keys: dict[str, str]) -> None:
    here = admin.post("/webhooks", json={"url": URL}).json()["links"]["self"]
    other = f"{here}/deliveries/{uuid.uuid4()}"
    needs = {
        ("POST", "/webhooks"): "admin",
        ("PATCH", here): "admin",
        ("DELETE", here): "admin",
        ("POST", f"{here}/rotate-secret"): "admin",
        ("POST", f"{here}/test"): "operate",
        ("POST", f"{other}/replay"): "operate",
        ("GET", "/webhooks"): "read",
        ("GET", here): "read",
        ("GET", f"{here}/deliveries"): "read",
        ("GET", other): "read",
    }
    order = ["read", "operate", "admin"]
    for (method, path), scope in needs.items():
        assert admin.request(method, path, headers={"Authorization": ""}).status_code == 401
        for held in order[: order.index(scope)]:
            refused = admin.request(method, path, headers={"Authorization": f"Bearer {keys[held]}"})
            assert refused.status_code == 403, (method, path, held)
        if scope != "admin":
            allowed = admin.request(method, path, headers={"Authorization": f"Bearer {keys[scope]}"})
            assert allowed.status_code in {200, 202, 404}, (method, path, scope)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "body.url"),
    ({"url": ""}, "body.url"),
    ({"url": "hooks.example.com"}, "body.url"),
    ({"url": "ftp://hooks.example.com"}, "body.url"),
    ({"url": "https://user:word@hooks.example.com"}, "body.url"),
    ({"url": "https://hooks.example.com/?token=1"}, "body.url"),
    ({"url": "https://10.0.0.1/hook"}, "body.url"),
    ({"url": "https://[fd00:ec2::254]/hook"}, "body.url"),
    ({"url": "http://8.8.8.8/hook"}, "body.url"),
    ({"url": "https://999.1.1.1/hook"}, "body.url"),
    ({"url": "https://xn--a/hook"}, "body.url"),
    ({"url": URL, "events": []}, "body.events"),
    ({"url": URL, "events": ["job.started"]}, "body.events.0"),
    ({"url": URL, "events": "job.failed"}, "body.events"),
    ({"url": URL, "secret": "whsec_"}, "body.secret"),
    ({"url": URL, "secret": secret_of(23)}, "body.secret"),
    ({"url": URL, "secret": secret_of(65)}, "body.secret"),
    ({"url": URL, "secret": secret_of(32).removeprefix("whsec_")}, "body.secret"),
    ({"url": URL, "secret": "whsec_" + "é" * 40}, "body.secret"),
    ({"url": URL, "description": "a\nb"}, "body.description"),
    ({"url": URL, "description": "a" * 201}, "body.description"),
    ({"url": URL, "enabled": "yes"}, "body.enabled"),
    ({"url": URL, "job_id": str(uuid.uuid4())}, "body.job_id"),
]


def test_what_cannot_be_registered_names_the_field(admin: TestClient) -> None:
    for document, field in REFUSED:
        refused = admin.post("/webhooks", json=document)
        assert refused.status_code == 422, document
        assert field in {error["field"] for error in refused.json()["errors"]}, document
        assert "AAECAwQFBgcICQ" not in refused.text, "a refused secret is not echoed"
    assert admin.get("/webhooks").json()["items"] == []


def test_what_cannot_be_changed(admin: TestClient) -> None:
    here = admin.post("/webhooks", json={"url": URL}).json()["links"]["self"]
    before = admin.get(here).json()
    changes = [{"url": None}, {"url": ""}, {"url": "https://127.1.0.0x1:65536"}, {"url": "https://10.0.0.1"}]
    changes += [{"events": None}, {"events": []}, {"enabled": None}, {"secret": secret_of(32)}]
    for change in changes:
        assert admin.patch(here, json=change).status_code == 422, change
    assert admin.get(here).json() == before
    assert admin.patch(here, json={}).json() == before


def test_without_a_private_network_a_webhook_is_https(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_settings(), "webhook_networks", [])
    refused = admin.post("/webhooks", json={"url": "http://hooks.example.com/"})
    assert (refused.status_code, "https://" in refused.json()["detail"]) == (422, True)
    assert admin.post("/webhooks", json={"url": "https://127.0.0.1/"}).status_code == 422
    assert admin.post("/webhooks", json={"url": "https://hooks.example.com/"}).status_code == 201


def test_without_an_encryption_key_nothing_is_stored(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_settings(), "secret_keys", [])
    refused = admin.post("/webhooks", json={"url": URL})
    assert refused.status_code == 422
    assert "FAULTSENSE_SECRET_KEYS" in refused.json()["detail"]
    assert admin.get("/webhooks").json()["items"] == []


def test_a_secret_is_shown_once_and_stored_encrypted(
    admin: TestClient, engine: Engine, register: Register
) -> None:
    given = secret_of(24)
    made = admin.post("/webhooks", json={"url": URL, "secret": given})
    assert made.json()["secret"] == given
    here = made.json()["links"]["self"]
    rotated = admin.post(f"{here}/rotate-secret", json={}).json()["secret"]
    for path in ("/webhooks", here, f"{here}/deliveries"):
        assert "whsec_" not in admin.get(path).text
    assert "whsec_" not in admin.patch(here, json={"description": "x"}).text
    with engine.connect() as db:
        stored = str(db.execute(text("SELECT * FROM webhooks")).all())
    for secret in (given, rotated):
        assert secret not in stored
        assert secret.removeprefix("whsec_")[:20] not in stored


def test_rotation_signs_with_both_secrets_until_the_grace_ends(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, deliver: Deliver, engine: Engine
) -> None:
    made = register(hook)
    first = made["secret"]
    rotate = f"{made['links']['self']}/rotate-secret"
    rotated = admin.post(rotate).json()
    second = rotated["secret"]
    assert second != first
    assert rotated["old_secret_until"] is not None
    with engine.connect() as db:
        left = db.execute(text("SELECT old_secret_until - now() FROM webhooks")).scalar_one()
    assert 86_300 < left.total_seconds() <= 86_400
    hook.knows(first, second)
    publish(1)
    deliver()
    assert hook.received[0]["verified"] == [True, True]
    assert len(hook.received[0]["headers"]["webhook-signature"].split(" ")) == 2
    third = new_secret()
    assert admin.post(rotate, json={"secret": third}).json()["secret"] == third
    hook.knows(first, second, third)
    publish(2)
    deliver()
    assert hook.received[1]["verified"] == [False, True, True], "the one before the last is out at once"
    with engine.begin() as db:
        db.execute(text("UPDATE webhooks SET old_secret_until = now() - interval '1 s'"))
    publish(3)
    deliver()
    assert hook.received[2]["verified"] == [False, False, True]
    with engine.connect() as db:
        assert db.execute(text("SELECT old_secret, old_secret_until FROM webhooks")).one() == (None, None)


def test_the_test_button(hook: Hook, admin: TestClient, register: Register, deliver: Deliver) -> None:
    other = Hook(hook.base)
    register(other)
    made = register(hook, events=["job.failed"])
    pressed = admin.post(made["links"]["test"])
    assert pressed.status_code == 202
    assert (pressed.json()["state"], pressed.json()["type"]) == ("pending", "webhook.test")
    deliver()
    (got,) = hook.received
    assert got["verified"] == [True]
    assert got["document"]["type"] == "webhook.test"
    assert got["document"]["data"] == {"webhook_id": made["id"]}
    outcome = admin.get(pressed.headers["Location"]).json()
    assert (outcome["state"], outcome["attempts"][0]["status"]) == ("delivered", 204)
    assert other.received == []


def test_a_replay_has_the_same_id_and_the_whole_schedule(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = register(hook)
    hook.answers({"status": 500}, {"status": 500}, {"status": 500}, {"status": 200})
    publish(1)
    deliver(webhook_schedule_s=[0])
    (ended,) = log(made)
    assert ended["state"] == "exhausted"
    for expected, schedule in (("exhausted", [0]), ("pending", [0, 0]), ("delivered", [0]), ("delivered", [0])):
        again = admin.post(ended["links"]["replay"])
        assert (again.status_code, again.json()["state"]) == (202, "pending")
        assert again.headers["Location"] == ended["links"]["self"]
        assert deliver(webhook_schedule_s=schedule)
        assert log(made)[0]["state"] == expected
    (sent,) = log(made)
    assert [a["number"] for a in sent["attempts"]] == [1, 2, 3, 4, 5]
    assert len(set(hook.ids)) == 1
    assert len({got["body"] for got in hook.received}) == 1


def test_a_replay_of_something_else(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, log: Log
) -> None:
    made, other = register(hook), register(hook)
    publish(1)
    (foreign,) = log(other)
    for method, end in (("GET", ""), ("POST", "/replay")):
        missing = admin.request(method, f"{made['links']['deliveries']}/{foreign['id']}{end}")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    (own,) = log(made)
    admin.patch(made["links"]["self"], json={"enabled": False})
    assert admin.post(own["links"]["replay"]).json()["code"] == "webhook_disabled"


def test_disabling_ends_what_is_pending(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = register(hook)
    publish(1)
    admin.patch(made["links"]["self"], json={"enabled": False})
    assert not deliver()
    assert log(made)[0]["state"] == "disabled"
    admin.patch(made["links"]["self"], json={"enabled": True})
    assert not deliver()
    admin.post(log(made)[0]["links"]["replay"])
    assert deliver()
    assert len(hook.received) == 1


def test_what_is_pending_goes_to_the_new_url(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, deliver: Deliver
) -> None:
    made, moved = register(hook), Hook(hook.base)
    publish(1)
    admin.patch(made["links"]["self"], json={"url": moved.url})
    assert deliver()
    assert (len(hook.received), len(moved.received)) == (0, 1)


def test_the_log_pages_and_filters(
    hook: Hook, admin: TestClient, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = register(hook)
    hook.answers({"status": 410})
    for _ in range(5):
        publish(0, subject=uuid.uuid4())
    deliver(webhook_in_flight=1)
    admin.patch(made["links"]["self"], json={"enabled": True})
    publish(6, 7)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = admin.get(made["links"]["deliveries"], params=query).json()
        seen += [one["id"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert seen == [one["id"] for one in reversed(log(made))]
    assert len(log(made, state="disabled")) == 5
    assert len(log(made, state="pending")) == 2
    assert log(made, state="delivered") == []
    assert admin.get(made["links"]["deliveries"], params={"state": "lost"}).status_code == 422
    assert admin.get(made["links"]["deliveries"], params={"cursor": "x"}).status_code == 422


def test_endpoints_are_paged(admin: TestClient) -> None:
    made = [admin.post("/webhooks", json={"url": URL}).json()["id"] for _ in range(3)]
    first = admin.get("/webhooks", params={"limit": 2}).json()
    second = admin.get("/webhooks", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [one["id"] for one in first["items"] + second["items"]] == made[::-1]
    assert second["next_cursor"] is None


def test_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [("SCHEDULE_S", "[]"), ("SCHEDULE_S", "[-1]"), ("NETWORKS", '["10.0.0.0/33"]'), ("TIMEOUT_S", "0")]
    for name, value in bad:
        with monkeypatch.context() as changed:
            changed.setenv(f"FAULTSENSE_WEBHOOK_{name}", value)
            with pytest.raises(ValueError, match=f"webhook_{name.lower()}"):
                Settings()


def test_an_idempotent_repeat_makes_nothing_and_shows_no_secret(admin: TestClient, engine: Engine) -> None:
    key = {"Idempotency-Key": "once"}
    first = admin.post("/webhooks", json={"url": URL}, headers=key)
    again = admin.post("/webhooks", json={"url": URL}, headers=key)
    assert first.json()["secret"].startswith("whsec_")
    assert again.json() == {**first.json(), "secret": None}
    assert len(admin.get("/webhooks").json()["items"]) == 1
    rotate = f"{first.json()['links']['self']}/rotate-secret"
    assert admin.post(rotate, headers={"Idempotency-Key": "twice"}).json()["secret"].startswith("whsec_")
    given = new_secret()
    admin.post(rotate, json={"secret": given}, headers={"Idempotency-Key": "thrice"})
    with engine.connect() as db:
        records = db.execute(text("SELECT convert_from(body, 'UTF8') FROM idempotency_records")).scalars().all()
        audited = str(db.execute(text("SELECT * FROM audit_entries")).all())
    assert len(records) == 3
    assert "whsec_" not in "".join(records) + audited
