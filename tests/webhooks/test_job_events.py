"""How jobs end, as webhooks tell it: every end once, in the same transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs import outcomes, service
from app.jobs.runner import run_slice
from app.settings import Settings
from app.webhooks.signing import new_secret
from tests.conftest import FAST, QUICK, replica_document
from tests.webhooks.conftest import Hook
from tests.webhooks.support import Deliver, Register

Localize = Callable[..., dict[str, Any]]
Queue = Callable[..., dict[str, Any]]


@pytest.fixture
def queued(admin: TestClient, emulated: EmulatedReplica) -> Queue:
    """A job that no worker has taken."""
    emulated.set_faults([])

    def run(**request: Any) -> dict[str, Any]:
        replica = admin.post("/replicas", json=replica_document(emulated)).json()
        accepted = admin.post(replica["links"]["localize"], json={**QUICK, **request})
        assert accepted.status_code == 202, accepted.text
        job: dict[str, Any] = accepted.json()
        return job

    return run


def outbox_rows(engine: Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(text("SELECT count(*) FROM webhook_deliveries")).scalar_one())


def test_from_a_localize_request_to_a_verified_event(
    hook: Hook, register: Register, deliver: Deliver, localize: Localize, admin: TestClient
) -> None:
    register(hook)
    with EmulatedReplica(gpus=4, rank_choice="url", faults=("gpu:2!error",), **FAST) as replica:
        job = localize(replica, {"k": 2})
    assert deliver()
    (got,) = hook.received
    assert got["verified"] == [True]
    document = got["document"]
    assert document["type"] == "job.completed"
    assert document["data"] == admin.get(job["links"]["self"]).json() == job
    assert document["data"]["verdict"]["suspects"][0]["members"] == [2]
    assert document["timestamp"].replace("+00:00", "Z") == job["finished_at"]


def test_a_job_that_fails(
    hook: Hook, register: Register, deliver: Deliver, localize: Localize, emulated: EmulatedReplica
) -> None:
    register(hook)
    localize(emulated, manifest={**emulated.manifest, "model": "another"})
    deliver()
    (got,) = hook.received
    assert (got["document"]["type"], got["document"]["data"]["state"]) == ("job.failed", "failed")
    assert got["document"]["data"]["error"]["code"] == "model_mismatch"


def test_cancelled_after_its_first_probe_has_a_verdict(
    hook: Hook, register: Register, deliver: Deliver, queued: Queue, admin: TestClient, engine: Engine,
    settings: Settings,
) -> None:  # fmt: skip
    register(hook)
    job = queued(repeats=15)
    short = settings.model_copy(update={"slice_s": 0.05})
    while admin.get(job["links"]["self"]).json()["progress"]["done"] == 0:
        assert run_slice(engine, short, uuid.UUID(job["id"])) == "again"
    assert admin.post(job["links"]["cancel"]).status_code == 202
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    deliver()
    (got,) = hook.received
    assert (got["document"]["type"], got["document"]["data"]["state"]) == ("job.completed", "cancelled")


def test_cancelled_in_the_queue_has_none(
    hook: Hook, register: Register, deliver: Deliver, queued: Queue, admin: TestClient
) -> None:
    register(hook)
    job = queued()
    assert admin.post(job["links"]["cancel"]).status_code == 202
    assert admin.post(job["links"]["cancel"]).status_code == 202
    deliver()
    (got,) = hook.received
    assert (got["document"]["type"], got["document"]["data"]["state"]) == ("job.failed", "cancelled")
    assert got["document"]["data"]["verdict"] is None


@pytest.mark.parametrize(
    ("change", "state", "code"),
    [
        ("deadline_at = now() - interval '1 s'", "expired", "expired"),
        ("state = 'running', deadline_at = now() - interval '1 h'", "failed", "lost"),
    ],
)
def test_what_the_sweep_ends(
    hook: Hook,
    register: Register,
    deliver: Deliver,
    queued: Queue,
    db: Session,
    change: str,
    state: str,
    code: str,
) -> None:
    register(hook)
    queued()
    db.execute(text(f"UPDATE jobs SET {change}"))
    service.sweep(db, 30)
    service.sweep(db, 30)
    db.commit()
    deliver()
    (got,) = hook.received
    assert (got["document"]["type"], got["document"]["data"]["state"]) == ("job.failed", state)
    assert got["document"]["data"]["error"]["code"] == code


def test_no_end_without_its_event_and_no_event_without_an_end(
    hook: Hook, register: Register, queued: Queue, db: Session, engine: Engine, settings: Settings,
    admin: TestClient, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    register(hook)
    job = queued()
    db.execute(text("UPDATE jobs SET deadline_at = now() - interval '1 s'"))
    service.sweep(db, 30)
    db.rollback()
    assert outbox_rows(engine) == 0

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no outbox")

    with monkeypatch.context() as changed:
        changed.setattr(outcomes.webhooks, "publish", broken)
        with pytest.raises(RuntimeError, match="no outbox"):
            run_slice(engine, settings, uuid.UUID(job["id"]))
        assert admin.post(job["links"]["cancel"]).status_code == 202
    assert admin.get(job["links"]["self"]).json()["state"] == "running"
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET lease_until = now() - interval '1 ms'"))
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    assert outbox_rows(engine) == 1


def test_a_worker_that_lost_its_lease_tells_nobody(
    hook: Hook,
    register: Register,
    queued: Queue,
    engine: Engine,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from app.jobs import repository

    register(hook)
    job = queued()
    finish = repository.finish

    def overtaken(*args: Any) -> bool:
        with engine.begin() as other:
            other.execute(text("UPDATE jobs SET attempt = attempt + 1"))
        return finish(*args)

    monkeypatch.setattr(repository, "finish", overtaken)
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "lease_lost"
    assert outbox_rows(engine) == 0


class TestWebhookUrl:
    """``webhook_url`` of a request: an endpoint of its own, for that job only."""

    def test_it_gets_that_job_s_end_signed(
        self, receiver: str, queued: Queue, deliver: Deliver, admin: TestClient
    ) -> None:
        wanted, bystander, secret = Hook(receiver), Hook(receiver), new_secret()
        wanted.knows(secret)
        job = queued(webhook_url=wanted.url, webhook_secret=secret)
        other = queued(webhook_url=bystander.url)
        admin.post(job["links"]["cancel"])
        assert deliver()
        (got,) = wanted.received
        assert (got["verified"], got["document"]["data"]["id"]) == ([True], job["id"])
        assert bystander.received == []
        admin.post(other["links"]["cancel"])
        assert deliver()
        assert "webhook-signature" not in bystander.received[0]["headers"], "no secret, no signature"
        assert len(wanted.received) == 1

    def test_it_has_a_log_of_its_own(self, hook: Hook, queued: Queue, deliver: Deliver, admin: TestClient) -> None:
        job = queued(webhook_url=hook.url)
        assert admin.get("/webhooks").json()["items"] == []
        (listed,) = admin.get("/webhooks", params={"job_id": job["id"]}).json()["items"]
        assert listed == admin.get(job["links"]["webhook"]).json()
        assert (listed["job_id"], listed["signed"], listed["url"]) == (job["id"], False, hook.url)
        admin.post(job["links"]["cancel"])
        deliver()
        (sent,) = admin.get(listed["links"]["deliveries"]).json()["items"]
        assert (sent["state"], sent["job_id"]) == ("delivered", job["id"])

    def test_its_secret_is_nowhere_in_clear(
        self, hook: Hook, queued: Queue, admin: TestClient, engine: Engine, settings: Settings
    ) -> None:
        secret = new_secret()
        job = queued(webhook_url=hook.url, webhook_secret=secret)
        assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
        shown = [admin.get(path).text for path in (*job["links"].values(), "/jobs") if "cancel" not in path]
        with engine.connect() as db:
            tables = ("jobs", "events", "verdicts", "webhooks", "webhook_events", "webhook_deliveries")
            shown += [str(db.execute(text(f"SELECT * FROM {table}")).all()) for table in tables]
        assert job["id"] in "".join(shown)
        assert secret.removeprefix("whsec_") not in "".join(shown)

    def test_what_is_refused(self, admin: TestClient, emulated: EmulatedReplica) -> None:
        here = "https://hooks.example.com"
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"webhook_url": "http://169.254.169.254/"}, "body.webhook_url"),
            ({"webhook_url": "https://10.1.2.3/", "dry_run": True}, "body.webhook_url"),
            ({"webhook_url": "nowhere"}, "body.webhook_url"),
            ({"webhook_url": here, "webhook_secret": "word"}, "body.webhook_secret"),
            ({"webhook_secret": new_secret()}, "body"),
        ]
        replica = admin.post("/replicas", json=replica_document(emulated)).json()
        for request, field in refusals:
            refused = admin.post(replica["links"]["localize"], json={**QUICK, **request})
            assert refused.status_code == 422, request
            assert [error["field"] for error in refused.json()["errors"]] == [field]
        assert admin.get("/jobs").json()["items"] == []
