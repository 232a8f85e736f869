"""Deliveries to a real receiver: what counts as delivered, and what happens to the rest."""

from __future__ import annotations

import base64
import datetime as dt
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from email.utils import format_datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.kit import broker
from app.settings import Settings
from app.webhooks import delivery, outbox, repository, service
from app.webhooks.sender import retry_after
from tests.outbound.servers import closed_port
from tests.webhooks.conftest import ROOT, SUBJECT, Hook

Register = Callable[..., dict[str, Any]]
Deliver = Callable[..., bool]
Publish = Callable[..., None]
Log = Callable[..., list[dict[str, Any]]]
Act = Callable[[], None]
SECRET_WORDS = "the-receiver-s-own-words"


# However busy the machine, an outcome is recorded so soon after its request.
SLACK = 30.0


def waits(engine: Engine) -> dict[str, float]:
    """Seconds from each delivery's last request to its next, by endpoint."""
    query = """
        SELECT d.webhook_id::text, extract(epoch FROM d.due_at - a.started_at)
        FROM webhook_deliveries d JOIN webhook_attempts a ON a.delivery_id = d.id AND a.number = d.attempts
    """
    with engine.connect() as db:
        return {row[0]: float(row[1]) for row in db.execute(text(query))}


def wait(engine: Engine) -> float:
    (only,) = waits(engine).values()
    return only


def test_an_event_is_signed_and_delivered_once(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = register(hook)
    publish(7)
    assert deliver()
    assert not deliver()
    (got,) = hook.received
    assert got["verified"] == [True]
    assert got["document"]["type"] == "job.completed"
    assert got["document"]["data"] == {"number": 7}
    assert dt.datetime.fromisoformat(got["document"]["timestamp"]).tzinfo is not None
    assert got["headers"]["content-type"] == "application/json"
    assert got["headers"]["user-agent"].startswith("FaultSense/")
    (sent,) = log(made)
    assert (sent["state"], sent["event_id"], sent["job_id"]) == ("delivered", hook.ids[0], str(SUBJECT))
    (attempt,) = sent["attempts"]
    assert (attempt["number"], attempt["status"], attempt["error"]) == (1, 204, None)
    assert attempt["duration_ms"] > 0
    assert sent["next_attempt_at"] is None
    assert sent["finished_at"] is not None


def test_a_receiver_with_another_secret_does_not_verify(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver
) -> None:
    register(hook)
    hook.knows("whsec_" + base64.b64encode(bytes(32)).decode())
    publish(1)
    deliver()
    assert hook.received[0]["verified"] == [False]


def test_endpoints_get_the_types_they_asked_for(
    receiver: str, register: Register, publish: Publish, deliver: Deliver
) -> None:
    both, failures, disabled = Hook(receiver), Hook(receiver), Hook(receiver)
    register(both)
    register(failures, events=["job.failed"])
    register(disabled, enabled=False)
    publish(1, type_="job.completed")
    publish(2, type_="job.failed")
    assert deliver()
    deliver()
    assert [got["document"]["data"]["number"] for got in both.received] == [1, 2]
    assert [got["document"]["data"]["number"] for got in failures.received] == [2]
    assert disabled.received == []
    assert failures.ids == both.ids[1:], "an event has one id, whoever gets it"


FAILURES: list[tuple[dict[str, Any], int | None, str]] = [
    ({"never": True}, None, "no answer within 2 s"),
    ({"drip": True}, None, "no answer within 2 s"),
    ({"status": 302, "headers": {"Location": "/hook/elsewhere"}}, 302, "redirect"),
    ({"status": 308, "headers": {"Location": "http://169.254.169.254/"}}, 308, "redirect"),
    ({"status": 304}, 304, "redirect"),
    ({"status": 400, "body": SECRET_WORDS}, 400, "answered 400"),
    ({"status": 404}, 404, "answered 404"),
    ({"status": 500, "body": SECRET_WORDS, "headers": {"X-Word": SECRET_WORDS}}, 500, "answered 500"),
    ({"raw": f"{SECRET_WORDS}\r\n\r\n"}, None, "not HTTP"),
    ({"raw": ""}, None, "the connection broke"),
    ({"status": 200, "headers": {"X-Long": SECRET_WORDS * 9000}}, None, "not HTTP"),
]


def test_what_is_no_2xx_is_tried_again_later_under_the_same_id(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, log: Log, due_now: Act, engine: Engine
) -> None:
    """One endpoint for each kind of failure, all in one batch."""
    hooks = [Hook(receiver) for _ in FAILURES]
    made = [register(hook) for hook in hooks]
    for hook, (answer, _, _) in zip(hooks, FAILURES, strict=True):
        hook.answers(answer, {"status": 200, "body": "<h1>thanks"})
    publish(1)
    assert deliver(webhook_timeout_s=2)
    for document, (_, status, error) in zip(made, FAILURES, strict=True):
        (waiting,) = log(document)
        assert (waiting["state"], waiting["attempts"][0]["status"]) == ("pending", status)
        assert error in waiting["attempts"][0]["error"]
        assert SECRET_WORDS not in json.dumps(waiting)
    assert all(4.5 <= seconds <= 5.5 + SLACK for seconds in waits(engine).values()), "5 s, give or take a tenth"
    assert not deliver(), "not due yet"
    due_now()
    assert deliver()
    for hook, document, (_, status, _) in zip(hooks, made, FAILURES, strict=True):
        (sent,) = log(document)
        assert (sent["state"], [a["status"] for a in sent["attempts"]]) == ("delivered", [status, 200])
        first, second = hook.received
        assert first["headers"]["webhook-id"] == second["headers"]["webhook-id"]
        assert first["body"] == second["body"]
        assert second["verified"] == [True]


def test_a_receiver_that_is_down_is_tried_again(
    hook: Hook, admin: TestClient, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = admin.post("/webhooks", json={"url": f"http://127.0.0.1:{closed_port()}/hook"}).json()
    publish(1)
    deliver()
    (waiting,) = log(made)
    assert (waiting["state"], waiting["attempts"][0]["status"]) == ("pending", None)
    assert "cannot be connected to" in waiting["attempts"][0]["error"]


def test_the_body_of_an_answer_is_not_waited_for(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log
) -> None:
    made = register(hook)
    hook.answers({"endless": True})
    publish(1)
    deliver(webhook_timeout_s=5)
    (sent,) = log(made)
    assert sent["state"] == "delivered"
    assert sent["attempts"][0]["duration_ms"] < 4000


def test_the_schedule_is_kept_to_its_end(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log, due_now: Act, engine: Engine,
    settings: Settings,
) -> None:  # fmt: skip
    made = register(hook)
    hook.answers({"status": 500})
    publish(1)
    for planned in settings.webhook_schedule_s[1:]:
        assert deliver()
        assert planned * 0.9 <= wait(engine) <= planned * 1.1 + SLACK
        due_now()
    assert deliver()
    assert settings.webhook_schedule_s == [0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    (ended,) = log(made)
    assert (ended["state"], len(ended["attempts"]), ended["next_attempt_at"]) == ("exhausted", 10, None)
    due_now()
    assert not deliver()
    assert len(set(hook.ids)) == 1
    assert len(hook.ids) == 10


def test_tries_do_not_fall_together(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, engine: Engine
) -> None:
    """Jitter: deliveries that failed in the same moment do not come back in the same moment."""
    register(hook)
    hook.answers({"status": 500})
    for number in range(4):
        publish(number, subject=uuid.uuid4())
    deliver()
    with engine.connect() as db:
        due = db.execute(text("SELECT due_at FROM webhook_deliveries ORDER BY due_at")).scalars().all()
    assert (due[-1] - due[0]).total_seconds() > 0.02


def test_retry_after_is_honoured(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, engine: Engine
) -> None:
    """As seconds and as a date, with 429 and 503; never sooner than the schedule, never later than a day."""

    def date(seconds: float) -> str:
        return format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds), usegmt=True)

    cases: list[tuple[int, str, float, float]] = [
        (429, "120", 120, 120 + SLACK),
        (503, "1", 4.5, 5.5 + SLACK),
        (429, date(3600), 3600 - SLACK, 3600),
        (503, date(9 * 86_400), 86_400, 86_400 + SLACK),
        (503, date(-3600), 4.5, 5.5 + SLACK),
        (500, "3600", 4.5, 5.5 + SLACK),
    ]
    made = []
    for status, value, _, _ in cases:
        hook = Hook(receiver)
        made.append(register(hook)["id"])
        hook.answers({"status": status, "headers": {"Retry-After": value}})
    publish(1)
    deliver()
    for webhook_id, (status, value, low, high) in zip(made, cases, strict=True):
        assert low <= waits(engine)[webhook_id] <= high, (status, value)


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", dt.timedelta(minutes=2)),
        (" 0 ", dt.timedelta(0)),
        ("000000000000000120", dt.timedelta(minutes=2)),
        ("9" * 5000, dt.timedelta(hours=24)),
        ("Fri, 31 Dec 1999 23:59:59 GMT", dt.datetime(1999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ("Fri, 31 Dec 1999 23:59:59 -0000", dt.datetime(1999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_read(value: str, wait: object) -> None:
    assert retry_after(value) == wait


def test_gone_disables_until_an_operator_enables(
    hook: Hook, register: Register, publish: Publish, deliver: Deliver, log: Log, due_now: Act, admin: TestClient,
) -> None:  # fmt: skip
    made = register(hook)
    hook.answers({"status": 500}, {"status": 410}, {"status": 200})
    publish(1, subject=uuid.uuid4())
    deliver()
    publish(2)
    assert deliver()
    shown = admin.get(made["links"]["self"]).json()
    assert (shown["enabled"], shown["disabled_reason"]) == (
        False,
        "the receiver answered 410 Gone: wants no more events",
    )
    assert shown["disabled_at"] is not None
    assert [one["state"] for one in log(made)] == ["disabled", "disabled"]
    due_now()
    publish(3)
    assert not deliver()
    assert len(hook.received) == 2
    refused = admin.post(made["links"]["test"])
    assert (refused.status_code, refused.json()["code"]) == (409, "webhook_disabled")
    enabled = admin.patch(made["links"]["self"], json={"enabled": True}).json()
    assert (enabled["enabled"], enabled["disabled_reason"], enabled["disabled_at"]) == (True, None, None)
    publish(4)
    assert deliver()
    assert [got["document"]["data"]["number"] for got in hook.received] == [1, 2, 4]


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
    assert outbox.claim(db, in_flight=9, lease_s=30) == [], "the loser's outcome did not end the winner's lease"


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


def test_counts_for_metrics(
    receiver: str, register: Register, publish: Publish, deliver: Deliver, db: Session
) -> None:
    none = {"delivered": 0, "exhausted": 0, "disabled": 0, "retrying": 0, "waiting": 0}
    assert repository.counts(db) == none
    assert repository.oldest_due_s(db) == 0
    well, ill, gone = Hook(receiver), Hook(receiver), Hook(receiver)
    for one, answer in ((well, 200), (ill, 500), (gone, 410)):
        register(one)
        one.answers({"status": answer})
    publish(1)
    deliver()
    publish(2, subject=uuid.uuid4())
    db.execute(text("UPDATE webhook_deliveries SET due_at = now() - interval '90 s' WHERE attempts = 0"))
    db.commit()
    assert repository.counts(db) == {**none, "delivered": 1, "disabled": 1, "retrying": 1, "waiting": 2}
    assert 90 <= repository.oldest_due_s(db) < 150
