"""webhooks create, list, test, deliveries and replay against a running service."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from app.emulator.replica import EmulatedReplica
from app.settings import Settings
from app.webhooks.delivery import deliver
from app.webhooks.signing import new_secret
from tests.cli.conftest import STOP_S, Service
from tests.cli.support import refused
from tests.webhooks.conftest import Hook, receiver  # noqa: F401


@pytest.fixture
def hook(receiver: str) -> Hook:  # noqa: F811
    return Hook(receiver)


@pytest.fixture
def boss(service: Service, keys: dict[str, str]) -> Service:
    """The service, with an admin key."""
    return Service(service.url, keys["admin"])


@pytest.fixture
def delivering(engine: Engine, settings: Settings) -> Iterator[None]:
    """Delivers in a thread, as a worker process would."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.02):
            deliver(engine, settings)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(STOP_S)
    assert not thread.is_alive()


def test_from_making_one_to_a_replay(boss: Service, hook: Hook, delivering: None) -> None:
    made = boss.run("webhooks", "create", hook.url, "--description", "pager", "--event", "job.failed", "--json")
    assert made.status == 0
    hook.knows(made.document["secret"])
    here = made.document["id"]
    assert boss.run("webhooks", "list").out == f"{here}  enabled  job.failed  {hook.url}  pager\n"
    tested = boss.run("webhooks", "test", here)
    assert (tested.status, tested.out) == (0, "delivered: attempt 1, answered 204\n")
    hook.answers({"status": 500})
    failed = boss.run("webhooks", "test", here, "--json")
    assert (failed.status, failed.document["attempts"][0]["error"]) == (1, "answered 500")
    (waiting,) = boss.run("webhooks", "deliveries", here, "--state", "pending", "--json").document
    assert waiting["id"] == failed.document["id"]
    shown = boss.run("webhooks", "deliveries", here, "--limit", 1).out
    assert shown.endswith("webhook.test  pending: attempt 1, answered 500\n")
    hook.answers({"status": 200})
    replayed = boss.run("webhooks", "replay", here, waiting["id"], "--json")
    assert (replayed.status, replayed.document["state"]) == (0, "delivered")
    assert hook.ids[1] == hook.ids[2] == waiting["event_id"]
    assert all(got["verified"] == [True] for got in hook.received)
    hook.answers({"status": 410})
    assert boss.run("webhooks", "test", here).status == 1
    assert "disabled (the receiver answered 410 Gone: wants no more events)" in boss.run("webhooks", "list").out
    refused(boss.run("webhooks", "test", here), "409 webhook_disabled")


def test_the_secret_is_shown_or_given(boss: Service, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = boss.run("webhooks", "create", hook.url).out.splitlines()
    assert first.startswith("webhook ")
    assert second.startswith("secret  whsec_")
    monkeypatch.setenv("FAULTSENSE_WEBHOOK_SECRET", secret := new_secret())
    assert boss.run("webhooks", "create", hook.url, "--json").document["secret"] == secret
    assert len(boss.run("webhooks", "list", "--json").document) == 2
    assert "whsec_" not in boss.run("webhooks", "list", "--json").out


def test_localize_with_a_webhook(service: Service, worker: None, delivering: None, hook: Hook) -> None:
    hook.knows(secret := new_secret())
    with EmulatedReplica(gpus=4, rank_choice="url", faults=("gpu:2!error",)) as replica:
        name = service.register(replica)["name"]
        options = ("--webhook-url", hook.url, "--webhook-secret", secret, "--json")
        job = service.run("localize", name, *options).document
        endpoint = service.call("GET", job["links"]["webhook"])
        (sent,) = service.call("GET", endpoint["links"]["deliveries"])["items"]
        done = service.run("webhooks", "replay", endpoint["id"], sent["id"])
    assert done.status == 0
    assert {got["document"]["data"]["id"] for got in hook.received} == {job["id"]}
    assert all(got["verified"] == [True] for got in hook.received)


def test_what_is_refused(service: Service, boss: Service, hook: Hook) -> None:
    refused(service.run("webhooks", "create", hook.url), "403 forbidden", "admin")
    refused(boss.run("webhooks", "create", "http://169.254.169.254/"), "422", "body.url")
    refused(boss.run("webhooks", "create", hook.url, "--event", "job.started"), "422", "body.events")
    refused(boss.run("webhooks", "create", hook.url, "--secret", "word"), "422", "body.secret")
    refused(boss.run("webhooks", "test", uuid.uuid4()), "404 not_found")
    refused(boss.run("webhooks", "deliveries", uuid.uuid4()), "404 not_found")
    here = boss.run("webhooks", "create", hook.url, "--json").document["id"]
    refused(boss.run("webhooks", "deliveries", here, "--state", "lost&x=1"), "422", "query.state")
    refused(boss.run("webhooks", "replay", here, uuid.uuid4()), "404 not_found")
