"""A database without space, and clocks that jump: a clear answer or a clean retry; nothing lost or doubled."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs.runner import run_slice
from app.localization.replay import replay_lines
from app.settings import Settings
from tests.conftest import QUICK, replica_document


@contextmanager
def full_disk(db: Session, table: str, *, after: int = 0) -> Iterator[None]:
    """Let PostgreSQL answer as it does without space: SQLSTATE 53100 on every insert, after some that succeed."""
    db.execute(
        text(
            f"""
            CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF (SELECT count(*) FROM {table}) >= {after} THEN
                    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER full_disk BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION full_disk();
            """
        )
    )
    db.commit()
    yield
    db.execute(text(f"DROP TRIGGER full_disk ON {table}; DROP FUNCTION full_disk()"))
    db.commit()


@pytest.fixture
def job(client: TestClient, emulated: EmulatedReplica) -> dict[str, Any]:
    emulated.set_faults(["gpu:5*4"])
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    started: dict[str, Any] = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    return started


def verdict(client: TestClient, job: dict[str, Any]) -> list[str]:
    ended = client.get(f"/jobs/{job['id']}").json()
    assert ended["state"] == "succeeded", ended
    lines = client.get(f"/jobs/{job['id']}/log").text.splitlines()
    assert replay_lines(lines).identical
    return [f"{s['kind']}:{s['members'][0]}" for s in ended["verdict"]["suspects"]]


def test_a_request_is_told_and_leaves_nothing(client: TestClient, emulated: EmulatedReplica, db: Session) -> None:
    with full_disk(db, "audit_entries"):  # the last row of the transaction
        answer = client.post("/replicas", json=replica_document(emulated))
        assert (answer.status_code, answer.json()["code"]) == (503, "database_full")
        assert answer.headers["Retry-After"] == "60"
        assert "device" not in answer.text
    assert client.get("/replicas").json()["items"] == []


def test_a_job_goes_on_when_there_is_space_again(
    client: TestClient, db: Session, engine: Engine, settings: Settings, job: dict[str, Any]
) -> None:
    job_id = uuid.UUID(job["id"])
    with full_disk(db, "events", after=6), pytest.raises(OperationalError, match="No space left"):
        run_slice(engine, settings, job_id)
    assert len(client.get(f"/jobs/{job_id}/probes").json()["items"]) == 5
    db.execute(text("UPDATE jobs SET lease_until = now() - interval '1 s'"))  # as 15 s later
    db.commit()
    while run_slice(engine, settings, job_id) == "again":
        pass
    assert verdict(client, job) == ["gpu:5"]


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0, 3.2e9])
def test_a_workers_clock_that_jumps_changes_nothing(
    client: TestClient,
    engine: Engine,
    settings: Settings,
    job: dict[str, Any],
    jump_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leases and deadlines are the database's time; a machine counts with its monotonic clock."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    while run_slice(engine, settings, uuid.UUID(job["id"])) == "again":
        pass
    assert verdict(client, job) == ["gpu:5"]


def test_a_deadline_that_has_passed_still_ends_the_job(
    client: TestClient, db: Session, engine: Engine, settings: Settings, job: dict[str, Any]
) -> None:
    db.execute(text("UPDATE jobs SET deadline_at = now() - interval '1 s', state = 'running'"))
    db.commit()
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    ended = client.get(f"/jobs/{job['id']}").json()
    assert [reason["code"] for reason in ended["verdict"]["reasons"]][-1] == "deadline"
