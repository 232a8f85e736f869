"""Deliveries to a real receiver: what counts as delivered, and what happens to the rest."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from email.utils import format_datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.settings import Settings
from app.webhooks import delivery, outbox
from app.webhooks.sender import retry_after
from tests.outbound.servers import closed_port
from tests.webhooks.conftest import SUBJECT, Hook
from tests.webhooks.support import SLACK, Act, Deliver, Log, Publish, Register, wait, waits

SECRET_WORDS = "the-receiver-s-own-words"


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


def test_tries_do_not_fall_together(db: Session) -> None:
    """Jitter: deliveries that failed in the same moment do not come back in the same moment."""
    failed = delivery.Outcome(500, "answered 500")
    moments = db.execute(select(*(outbox._next_due(1000, failed) - func.now() for _ in range(20)))).one()
    seconds = [moment.total_seconds() for moment in moments]
    assert len(set(seconds)) > 10
    assert all(900 <= one <= 1100 for one in seconds)


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
