"""Webhooks through the whole service: API, worker, tick, both queues, and a receiver process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.cli.stack import Stack
from app.emulator.replica import EmulatedReplica
from app.webhooks.signing import new_secret
from tests.conftest import FAST, replica_document
from tests.support.waiting import until
from tests.webhooks.conftest import Hook

pytestmark = pytest.mark.slow

SETTINGS = {"webhook_tick_s": "1", "webhook_schedule_s": "[0, 1, 1]", "webhook_timeout_s": "4"}
QUICK = {"k": 2, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 8}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One process for jobs and webhooks alike."""
    with Stack(workers=1, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client() as client:
        yield client


@pytest.fixture(scope="module")
def replica() -> Iterator[EmulatedReplica]:
    with EmulatedReplica(gpus=4, rank_choice="url", faults=("gpu:2!error",), **FAST) as running:
        yield running


def localize(client: httpx.Client, replica: EmulatedReplica, **request: Any) -> str:
    registered = client.post("/replicas", json=replica_document(replica)).json()
    accepted = client.post(registered["links"]["localize"], json={**QUICK, **request})
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["id"])


def test_a_hint_brings_the_event_at_once(
    stack: Stack, client: httpx.Client, replica: EmulatedReplica, hook: Hook
) -> None:
    """Without a tick: after a job's end, which the worker commits, and after a test, which the API does."""
    stack.stop("tick")
    hook.knows(secret := new_secret())
    job_id = localize(client, replica, webhook_url=hook.url, webhook_secret=secret)
    (got,) = until(lambda: hook.received)
    assert got["verified"] == [True]
    assert (got["document"]["type"], got["document"]["data"]["id"]) == ("job.completed", job_id)
    made = client.post("/webhooks", json={"url": hook.url}).json()
    client.post(made["links"]["test"])
    until(lambda: len(hook.received) == 2)
    stack.start("tick")


def test_the_tick_finds_what_no_hint_told_of_and_tries_again(
    stack: Stack, client: httpx.Client, replica: EmulatedReplica, hook: Hook
) -> None:
    """Redis is away when the event happens, and the receiver is not ready at first."""
    made = client.post("/webhooks", json={"url": hook.url}).json()
    hook.knows(made["secret"])
    hook.answers({"status": 503}, {"status": 200})
    stack.services.redis.kill()
    job_id = localize(client, replica)
    assert client.post(f"/jobs/{job_id}/cancel").status_code == 202
    stack.services.redis.start()
    until(lambda: client.get(made["links"]["deliveries"]).json()["items"][0]["state"] == "delivered")
    assert len(hook.received) == 2
    assert len(set(hook.ids)) == 1
    assert all(got["verified"] == [True] for got in hook.received)


def test_silent_receivers_do_not_starve_jobs(
    client: httpx.Client, replica: EmulatedReplica, receiver: str
) -> None:
    """The only worker process has a queue full of deliveries that each take their whole timeout."""
    registered = []
    for _ in range(6):
        silent = Hook(receiver)
        silent.answers({"never": True})
        made = client.post("/webhooks", json={"url": silent.url, "events": ["job.failed"]}).json()
        registered.append(made)
        for _ in range(20):
            assert client.post(made["links"]["test"]).status_code == 202
    job_id = localize(client, replica)
    ended = {"succeeded", "failed", "expired"}
    job = until(lambda: (found := client.get(f"/jobs/{job_id}").json())["state"] in ended and found)
    assert job["state"] == "succeeded"
    log = [client.get(made["links"]["deliveries"], params={"limit": 500}).json()["items"] for made in registered]
    untried = sum(not one["attempts"] for deliveries in log for one in deliveries)
    assert untried > 0, "the deliveries were over before the job was"
