"""The outbox: order, leases, fairness, and what a worker that dies leaves behind."""

from __future__ import annotations

import datetime as dt
import signal
import socket
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.kit import broker, secrets
from app.kit.db import Base
from app.settings import Settings
from app.webhooks import delivery, outbox, repository, service
from tests.webhooks.conftest import ROOT, SUBJECT, Hook
from tests.webhooks.support import SLACK, Act, Deliver, Log, Publish, Register, wait


def test_events_of_a_job_arrive_in_order(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, due_now: Act
) -> None:
    register(hook)
    hook.answers({"status": 500}, {"status": 500}, {"status": 200})
    publish(1, 2, 3)
    publish(9, subject=uuid.uuid4())

    def numbers() -> list[int]:
        return [got["document"]["data"]["number"] for got in hook.received]

    deliver()
    assert sorted(numbers()) == [1, 9], "another job's event does not wait"
    assert not deliver(), "2 waits for 1"
    for _ in range(4):
        due_now()
        deliver()
    assert [n for n in numbers() if n != 9][-3:] == [1, 2, 3]


def test_a_later_event_does_not_wait_for_one_that_is_given_up(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver
) -> None:
    register(hook)
    hook.answers({"status": 500}, {"status": 200})
    publish(1, 2)
    deliver(webhook_schedule_s=[0])
    assert deliver()
    assert [got["document"]["data"]["number"] for got in hook.received] == [1, 2]


def test_what_another_worker_has_is_left_to_it(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, db: Session, settings: Settings
) -> None:
    register(hook)
    publish(1, 2)
    (taken,) = outbox.claim(db, in_flight=9, lease_s=30)
    with Session(db.get_bind()) as other:
        assert outbox.claim(other, in_flight=9, lease_s=30) == [], "its row is locked, and 2 waits for 1"
    db.commit()
    assert not deliver()
    db.execute(text("UPDATE webhook_deliveries SET lease_until = now() - interval '1 ms' WHERE attempts > 0"))
    db.commit()
    (again,) = outbox.claim(db, in_flight=9, lease_s=30)
    db.commit()
    assert (again.id, again.event_id, again.attempt) == (taken.id, taken.event_id, 2)
    outbox.record(db, taken, delivery.Outcome(500, "answered 500"), settings.webhook_schedule_s)
    db.commit()
    query = "SELECT lease_until > now(), due_at <= now(), state FROM webhook_deliveries WHERE attempts > 0"
    assert db.execute(text(query)).one() == (True, True, "pending"), "the loser's outcome changed nothing"


def test_one_silent_endpoint_leaves_room_for_the_others(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    silent, well = Hook(receiver), Hook(receiver)
    made = register(silent, events=["job.failed"]), register(well, events=["job.completed"])
    silent.answers({"never": True})
    for _ in range(12):
        publish(0, type_="job.failed", subject=uuid.uuid4())
    publish(1)
    deliver(webhook_timeout_s=0.3, webhook_in_flight=10)
    tried = [sum(bool(one["attempts"]) for one in log(document)) for document in made]
    assert tried == [outbox.PER_ENDPOINT, 1]


def test_a_name_server_that_is_silent_costs_the_others_nothing(
    hook: Hook, register: Register, admin: TestClient, publish: Publish, deliver: Deliver, log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Look-ups run in threads, which cannot be interrupted: twelve that hang must leave one for the thirteenth."""
    for number in range(12):
        assert admin.post("/webhooks", json={"url": f"https://dead-{number}.test/"}).status_code == 201
    made = register(hook)
    publish(1)
    recorded = threading.Event()
    look_up, record = socket.getaddrinfo, outbox.record

    def hanging(host: str, *args: Any, **more: Any) -> Any:
        if host.startswith("dead-"):
            recorded.wait(60)
        return look_up("127.0.0.1" if host.startswith("dead-") else host, *args, **more)

    def noticed(db: Session, taken: outbox.Claimed, *args: Any) -> None:
        record(db, taken, *args)
        if str(taken.webhook_id) == made["id"]:
            recorded.set()

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    monkeypatch.setattr(outbox, "record", noticed)
    deliver(webhook_timeout_s=3)
    assert log(made)[0]["state"] == "delivered"


def test_an_unexpected_error_costs_the_others_nothing(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hooks = [Hook(receiver), Hook(receiver)]
    made = [register(hook) for hook in hooks]
    publish(1)
    send = delivery.send

    async def broken(client: Any, url: str, *args: Any, **more: Any) -> Any:
        if url == hooks[0].url:
            raise RuntimeError("a bug")
        return await send(client, url, *args, **more)

    monkeypatch.setattr(delivery, "send", broken)
    assert deliver()
    assert [log(document)[0]["state"] for document in made] == ["pending", "delivered"]


def test_no_more_than_the_limit_is_on_its_way(
    hook: Hook, register: Register, publish: Publish, db: Session
) -> None:
    register(hook)
    for _ in range(6):
        publish(0, subject=uuid.uuid4())
    assert len(outbox.claim(db, in_flight=4, lease_s=30)) == 4
    db.commit()
    assert outbox.claim(db, in_flight=4, lease_s=30) == []
    assert len(outbox.claim(db, in_flight=5, lease_s=30)) == 1


def test_a_worker_that_is_killed_after_sending_loses_nothing(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log, due_now: Act
) -> None:
    """The receiver itself kills the worker the moment it has the request: it arrived, nothing is recorded."""
    made = register(hook)
    program = (
        "import sys; sys.stdin.readline()\n"
        "from app.kit.db import get_engine\nfrom app.settings import get_settings\n"
        "from app.webhooks.delivery import deliver\ndeliver(get_engine(), get_settings())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        hook.answers({"kill": worker.pid}, {"status": 200})
        publish(1)
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
        assert worker.wait(60) == -signal.SIGKILL
    (lost,) = log(made)
    assert lost["state"] == "pending"
    assert (lost["attempts"][0]["status"], lost["attempts"][0]["error"]) == (None, None)
    assert not deliver(), "its lease has not run out"
    due_now()
    assert deliver()
    first, second = hook.received
    assert first["headers"]["webhook-id"] == second["headers"]["webhook-id"]
    assert first["body"] == second["body"]
    (sent,) = log(made)
    assert (sent["state"], len(sent["attempts"])) == ("delivered", 2)


def test_an_outcome_that_cannot_be_recorded_is_sent_again(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, due_now: Act, log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """PostgreSQL goes away between the answer and its recording."""
    made = register(hook)
    publish(1)
    recorded = outbox.record

    def away(*_: object) -> None:
        raise delivery.OperationalError("UPDATE", {}, Exception("server closed the connection"))

    monkeypatch.setattr(outbox, "record", away)
    assert deliver()
    monkeypatch.setattr(outbox, "record", recorded)
    due_now()
    assert deliver()
    assert len(hook.received) == 2
    assert len(set(hook.ids)) == 1
    assert log(made)[0]["state"] == "delivered"


def test_a_worker_s_clock_does_not_matter(
    hook: Hook, register: Register, publish: Publish, log: Log, due_now: Act, engine: Engine
) -> None:
    """A worker whose clock is three days ahead signs the database's time, and waits by the database's time."""
    register(hook)
    hook.answers({"status": 500})
    publish(1)
    program = (
        "import datetime, time\nreal = time.time\ntime.time = lambda: real() + 259200\n"
        "from app.kit.db import get_engine\nfrom app.settings import get_settings\n"
        "from app.webhooks.delivery import deliver\nassert deliver(get_engine(), get_settings())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
    (got,) = hook.received
    assert got["verified"] == [True], "the library refuses a time more than five minutes off"
    assert wait(engine) <= 5.5 + SLACK


def test_a_secret_that_cannot_be_read_is_tried_again(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log, due_now: Act,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = register(hook)
    publish(1)
    with monkeypatch.context() as changed:
        changed.setattr(service.get_settings(), "secret_keys", [])
        deliver()
    (waiting,) = log(made)
    assert "FAULTSENSE_SECRET_KEYS is not set" in waiting["attempts"][0]["error"]
    assert hook.received == []
    due_now()
    deliver()
    assert hook.received[0]["verified"] == [True]


def test_a_private_address_is_never_called_unless_allowed(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = register(hook)
    publish(1)
    monkeypatch.setattr(service.get_settings(), "webhook_networks", [])
    deliver()
    (waiting,) = log(made)
    assert "127.0.0.1 is not a public address" in waiting["attempts"][0]["error"]
    assert hook.received == []


def test_a_deleted_endpoint_takes_its_delivery_along(
    hook: Hook, register: Register, publish: Publish, admin: TestClient, db: Session, settings: Settings
) -> None:
    made = register(hook)
    publish(1)
    (taken,) = outbox.claim(db, in_flight=9, lease_s=30)
    db.commit()
    assert admin.delete(made["links"]["self"]).status_code == 204
    outbox.record(db, taken, delivery.Outcome(204, None), settings.webhook_schedule_s)
    db.commit()
    assert admin.get(made["links"]["deliveries"]).status_code == 404
    publish(2)
    assert outbox.claim(db, in_flight=9, lease_s=30) == []


def test_a_hint_is_sent_after_the_commit_and_only_then(
    hook: Hook, register: Register, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(hook)
    hints: list[str] = []
    monkeypatch.setattr(broker, "hint", hints.append)
    with Session(engine) as db:
        for number in range(3):
            service.publish(db, "job.failed", SUBJECT, {"number": number}, repository.now(db))
        assert hints == []
        db.commit()
        assert hints == [broker.DELIVER]
        service.publish(db, "job.failed", SUBJECT, {}, repository.now(db))
        db.commit()
        assert hints == [broker.DELIVER] * 2
    with Session(engine) as db:
        service.publish(db, "job.failed", SUBJECT, {}, repository.now(db))
        db.rollback()
    assert hints == [broker.DELIVER] * 2
    with engine.connect() as raw:
        assert raw.execute(text("SELECT count(*) FROM webhook_deliveries")).scalar() == 4


def test_what_metrics_show(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, db: Session, admin: TestClient
) -> None:
    assert repository.waiting(db) == (0, 0)
    well, ill, gone = Hook(receiver), Hook(receiver), Hook(receiver)
    for one, answer in ((well, 200), (ill, 500), (gone, 410)):
        register(one)
        one.answers({"status": answer})
    publish(1)
    deliver(webhook_schedule_s=[0, 3600])
    publish(2)
    db.execute(text("UPDATE webhook_deliveries SET due_at = now() - interval '90 s' WHERE attempts = 0"))
    number, age = repository.waiting(db)
    assert number == 3
    assert 90 <= age < 150, "well's second one"
    db.commit()
    deliver()
    number, age = repository.waiting(db)
    assert (number, age) == (2, 0), "ill's second one is not due before its first"
    shown = admin.get("/metrics").text
    for line in (
        'webhook_attempts_total{result="delivered"} 2.0',
        'webhook_attempts_total{result="failed"} 2.0',
        'webhook_deliveries_total{state="delivered"} 2.0',
        'webhook_deliveries_total{state="disabled"} 1.0',
        "webhooks_due 2.0",
        "webhooks_due_age_seconds 0.0",
    ):
        assert f"faultsense_{line}" in shown


def test_what_is_old_is_deleted_unless_it_is_pending(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, db: Session, log: Log
) -> None:
    well, ill = Hook(receiver), Hook(receiver)
    made = register(well, events=["job.completed"]), register(ill, events=["job.failed"])
    ill.answers({"status": 500})
    done, stuck = uuid.uuid4(), uuid.uuid4()
    for job_id in (done, stuck):
        service.create_for_job(db, uuid.uuid4(), job_id, well.url, None)
    db.commit()
    publish(1, subject=done)
    publish(2, type_="job.failed", subject=uuid.uuid4())
    deliver()
    month = dt.timedelta(days=30)
    assert repository.delete_old(db, month) == 0
    for table in ("webhook_events", "webhooks"):
        db.execute(text(f"UPDATE {table} SET created_at = now() - interval '31 days'"))
    db.commit()
    publish(3, subject=stuck)
    assert repository.delete_old(db, month) == 2, "one event, and the webhook of the job that it was of"
    assert repository.delete_old(db, month) == 0
    db.commit()
    assert [len(log(document)) for document in made] == [1, 1]
    left = db.execute(text("SELECT job_id FROM webhooks WHERE job_id IS NOT NULL")).scalars().all()
    assert left == [stuck]


def test_a_new_encryption_key_takes_the_secrets_along(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, admin: TestClient, db: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = register(hook)
    rotated = admin.post(f"{made['links']['self']}/rotate-secret").json()
    hook.knows(made["secret"], rotated["secret"])
    settings = service.get_settings()
    new = SecretStr(secrets.generate_key())
    monkeypatch.setattr(settings, "secret_keys", [new, *settings.secret_keys])
    assert secrets.reencrypt(db, Base.metadata) == 2
    db.commit()
    monkeypatch.setattr(settings, "secret_keys", [new])
    publish(1)
    deliver()
    assert hook.received[0]["verified"] == [True, True]
