"""Server-sent events over a real server: complete, in order, resumable, and cheap to watch."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs import watch
from app.jobs.runner import run_slice
from app.kit.db import POOL
from app.settings import Settings
from tests.conftest import QUICK, replica_document
from tests.support.api import ServedApi

Localize = Callable[..., dict[str, Any]]


@pytest.fixture
def served(settings: Settings, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(watch, "POLL_S", 0.02)
    monkeypatch.setattr(watch, "HEARTBEAT_S", 0.1)
    with (
        ServedApi(settings) as api,
        httpx.Client(
            base_url=api.url,
            headers={"Authorization": f"Bearer {keys['read']}"},
            timeout=20,
            trust_env=False,
            limits=httpx.Limits(),
        ) as client,
    ):
        yield client


def parse(text: str) -> list[dict[str, Any]]:
    """Blocks of a stream; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def read(client: httpx.Client, job_id: str, last: str | None = None) -> list[dict[str, Any]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    answer = client.get(f"/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    return parse(answer.text)


def numbered(events: list[dict[str, Any]]) -> list[int]:
    return [int(e["id"]) for e in events if "id" in e and e["id"] != "end"]


def test_a_job_is_watched_while_it_runs(
    client: TestClient, served: httpx.Client, emulated: EmulatedReplica, engine: Engine, settings: Settings
) -> None:
    emulated.set_faults([])
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    with served.stream("GET", f"/jobs/{job['id']}/events") as stream:
        chunks = stream.iter_text()
        seen = next(chunks)
        while "queued" not in seen:
            seen += next(chunks)
        assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
        seen += "".join(chunks)
    events = parse(seen)
    stored = client.get(f"/jobs/{job['id']}/log").text.splitlines()
    assert numbered(events) == list(range(len(stored) - 1))  # the log's last line is the verdict
    assert next(e["data"]["state"] for e in events if e["event"] == "state") == "queued"
    assert events[-1]["event"] == events[-1]["id"] == "end"
    assert events[-1]["data"] == client.get(f"/jobs/{job['id']}").json()


def test_a_watcher_that_reconnects_misses_nothing(
    localize: Localize, served: httpx.Client, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    job = localize(emulated)
    whole = numbered(read(served, job["id"]))
    assert len(whole) > 5
    assert numbered(read(served, job["id"], last="3")) == whole[4:]
    assert numbered(read(served, job["id"], last=str(whole[-1]))) == []
    assert read(served, job["id"], last="999999")[-1]["event"] == "end"


def test_after_the_end_nothing_follows(
    localize: Localize, served: httpx.Client, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    job = localize(emulated)
    answer = served.get(f"/jobs/{job['id']}/events", headers={"Last-Event-ID": "end"})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "99999999999"])
def test_a_broken_id_is_refused(served: httpx.Client, last: str) -> None:
    answer = served.get(f"/jobs/{uuid.uuid4()}/events", headers={"Last-Event-ID": last})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "header.last-event-id"


def test_an_unknown_job_is_no_stream(served: httpx.Client) -> None:
    answer = served.get(f"/jobs/{uuid.uuid4()}/events")
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")


def test_a_key_is_needed(served: httpx.Client) -> None:
    assert served.get(f"/jobs/{uuid.uuid4()}/events", headers={"Authorization": ""}).status_code == 401


def test_heartbeats_while_nothing_happens(
    client: TestClient, served: httpx.Client, emulated: EmulatedReplica
) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    with served.stream("GET", f"/jobs/{job['id']}/events") as stream:
        seen = ""
        for chunk in stream.iter_text():
            seen += chunk
            if seen.count(": still watching") >= 2:
                break


def test_long_logs_come_in_pages(
    client: TestClient, served: httpx.Client, emulated: EmulatedReplica, db: Session
) -> None:
    """A late watcher reads what the feed no longer holds from the database, each event once."""
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    fill = (
        "INSERT INTO events (job_id, seq, type, attempt, data)"
        " SELECT :job, n, 'resumed', 1, '{}' FROM generate_series(0, 2499) n"
    )
    db.execute(text(fill), {"job": job["id"]})
    db.execute(text("UPDATE jobs SET state = 'failed', finished_at = now()"))
    db.commit()
    assert numbered(read(served, job["id"])) == list(range(2500))
    assert numbered(read(served, job["id"], last="1200")) == list(range(1201, 2500))


def test_a_watcher_ahead_of_the_feed_sees_nothing_twice(
    client: TestClient, emulated: EmulatedReplica, db: Session, engine: Engine
) -> None:
    """It has just read from the database what the feed will learn with its next poll."""
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = uuid.UUID(client.post(f"/replicas/{replica}/localize", json=QUICK).json()["id"])
    fill = (
        "INSERT INTO events (job_id, seq, type, attempt, data)"
        " SELECT :job, n, 'resumed', 1, '{}' FROM generate_series(CAST(:first AS int), :last) n"
    )

    async def ids() -> list[int]:
        hub, feed = watch.Hub(), None
        db.execute(text(fill), {"job": job, "first": 0, "last": 9})
        db.commit()
        feed = hub.join(job, 9)  # somebody watches already, and the feed knows ten events
        db.execute(text(fill), {"job": job, "first": 10, "last": 12})
        db.execute(text("UPDATE jobs SET state = 'failed', finished_at = now()"))
        db.commit()
        seen = b"".join([chunk async for chunk in watch._stream(hub, job, -1, 12)])
        hub.leave(job)
        assert feed.end is not None
        return numbered(parse(seen.decode()))

    assert asyncio.run(ids()) == list(range(13))


def test_watchers_keep_no_connection(
    client: TestClient, served: httpx.Client, emulated: EmulatedReplica, engine: Engine
) -> None:
    """More watchers than the pool has connections, and others are still answered."""
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    with ExitStack() as streams:
        for _ in range(POOL + 5):
            stream = streams.enter_context(served.stream("GET", f"/jobs/{job['id']}/events"))
            next(stream.iter_text())
        assert served.get(f"/jobs/{job['id']}").status_code == 200


def test_watchers_share_their_polls(
    client: TestClient, emulated: EmulatedReplica, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty watchers cost as many queries as one."""
    monkeypatch.setattr(watch, "POLL_S", 0.02)
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = uuid.UUID(client.post(f"/replicas/{replica}/localize", json=QUICK).json()["id"])
    statements: list[str] = []

    async def polls(watchers: int) -> float:
        streams = [await watch.watch(job, -1) for _ in range(watchers)]
        for stream in streams:
            while b"event: state" not in await anext(stream):
                pass
        statements.clear()
        hub = watch._hubs[asyncio.get_running_loop()]
        rounds = 0
        before = hub.polls
        while rounds < 5:
            await asyncio.sleep(0)
            rounds = hub.polls - before
        counted = len(statements) / rounds
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        return counted

    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    one, fifty = asyncio.run(polls(1)), asyncio.run(polls(50))
    assert fifty <= one + 1
