"""A POST that is sent again under its Idempotency-Key is answered again, not done again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.kit import broker, idempotency
from tests.conftest import replica_document


@pytest.fixture
def replica(client: TestClient, emulated: EmulatedReplica) -> str:
    registered = client.post("/replicas", json=replica_document(emulated))
    return str(registered.json()["id"])


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr(broker, "hint", lambda task, *args: sent.append((task, *args)))
    yield sent


def send(client: TestClient, path: str, body: Any, key: str) -> Any:
    return client.post(path, json=body, headers={"Idempotency-Key": key})


def test_the_same_request_gets_the_same_answer(
    client: TestClient, replica: str, hints: list[tuple[str, ...]], db: Session
) -> None:
    first = send(client, f"/replicas/{replica}/localize", {"k": 2}, "one")
    again = send(client, f"/replicas/{replica}/localize", {"k": 2}, "one")
    assert first.status_code == again.status_code == 202
    assert again.content == first.content
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert db.execute(text("SELECT count(*) FROM jobs")).scalar() == 1
    assert hints == [(broker.LOCALIZE, first.json()["id"])]


def test_another_body_is_refused(client: TestClient, replica: str) -> None:
    send(client, f"/replicas/{replica}/localize", {"k": 2}, "one")
    other = send(client, f"/replicas/{replica}/localize", {"k": 3}, "one")
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency_key_reused"
    assert other.json()["errors"][0]["field"] == "header.idempotency-key"


def test_another_path_is_another_request(client: TestClient, replica: str, emulated: EmulatedReplica) -> None:
    send(client, f"/replicas/{replica}/localize", {}, "one")
    assert send(client, "/replicas", replica_document(emulated), "one").status_code == 422


def test_an_error_is_not_kept(client: TestClient, emulated: EmulatedReplica, replica: str) -> None:
    taken = client.get(f"/replicas/{replica}").json()["name"]
    assert send(client, "/replicas", replica_document(emulated, name=taken), "one").status_code == 409
    assert send(client, "/replicas", replica_document(emulated, name="free"), "one").status_code == 201


def test_keys_belong_to_their_sender(client: TestClient, keys: dict[str, str], replica: str) -> None:
    first = send(client, f"/replicas/{replica}/localize", {}, "one")
    client.headers["Authorization"] = f"Bearer {keys['admin']}"
    second = send(client, f"/replicas/{replica}/localize", {}, "one")
    assert (first.status_code, second.status_code) == (202, 409)  # busy: not the first one's answer


def test_a_key_that_was_revoked_replays_nothing(client: TestClient, replica: str, db: Session) -> None:
    send(client, f"/replicas/{replica}/localize", {}, "one")
    db.execute(text("UPDATE api_keys SET revoked_at = now()"))
    db.commit()
    assert send(client, f"/replicas/{replica}/localize", {}, "one").status_code == 401


def test_while_the_first_is_in_work(client: TestClient, replica: str, db: Session, keys: dict[str, str]) -> None:
    from app.kit.auth import find_key

    owner = find_key(db, keys["operate"])
    assert owner is not None
    held = idempotency.Ticket(owner.id, "one", b"")
    db.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": held.lock})
    busy = send(client, f"/replicas/{replica}/localize", {}, "one")
    assert busy.status_code == 409
    assert busy.json()["code"] == "idempotency_in_progress"
    assert busy.headers["Retry-After"] == "1"
    db.rollback()
    assert send(client, f"/replicas/{replica}/localize", {}, "one").status_code == 202


def test_many_at_once_make_one(client: TestClient, emulated: EmulatedReplica, db: Session) -> None:
    body = replica_document(emulated)
    answers: list[int] = []
    together = threading.Barrier(6)

    def register() -> None:
        together.wait()
        answers.append(send(client, "/replicas", body, "one").status_code)

    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {201, 409}
    assert 201 in answers
    assert db.execute(text("SELECT count(*) FROM replicas")).scalar() == 1
    assert send(client, "/replicas", body, "one").status_code == 201


@pytest.mark.parametrize("key", ["", "with space", "k" * 256, "ä"])
def test_a_key_must_be_sane(client: TestClient, replica: str, key: str) -> None:
    refused = client.post(f"/replicas/{replica}/localize", headers={"Idempotency-Key": key.encode("latin-1")})  # type: ignore[dict-item]
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "header.idempotency-key"


def test_records_end_after_a_day(client: TestClient, replica: str, db: Session) -> None:
    first = send(client, f"/replicas/{replica}/localize", {}, "one").json()
    client.post(f"/jobs/{first['id']}/cancel")
    db.execute(text("UPDATE idempotency_records SET created_at = now() - interval '25 hours'"))
    db.commit()
    second = send(client, f"/replicas/{replica}/localize", {}, "one").json()
    assert second["id"] != first["id"]
    db.execute(text("UPDATE idempotency_records SET created_at = now() - interval '25 hours'"))
    assert idempotency.delete_expired(db) == 1
    assert idempotency.delete_expired(db) == 0


def test_a_secret_is_not_kept(anonymous: TestClient, keys: dict[str, str], db: Session) -> None:
    anonymous.headers["Authorization"] = f"Bearer {keys['admin']}"
    first = send(anonymous, "/keys", {"name": "bot", "scope": "read"}, "one").json()
    again = send(anonymous, "/keys", {"name": "bot", "scope": "read"}, "one").json()
    assert first["key"].startswith("fs_")
    assert again == {**first, "key": None}
    stored = db.execute(text("SELECT body FROM idempotency_records")).scalar_one()
    assert first["key"].encode() not in bytes(stored)


def test_a_crash_before_the_commit_leaves_nothing(
    client: TestClient, emulated: EmulatedReplica, db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("the process ends here")

    body = replica_document(emulated)
    with monkeypatch.context() as patched:
        patched.setattr("app.kit.audit.record", crash)
        assert send(client, "/replicas", body, "one").status_code == 500
    assert db.execute(text("SELECT count(*) FROM replicas")).scalar() == 0
    assert db.execute(text("SELECT count(*) FROM idempotency_records")).scalar() == 0
    assert send(client, "/replicas", body, uuid.uuid4().hex).status_code == 201
